"""The live page with the doctor in it: `danlu watch`, and beside a training that asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

from danlu.errors import EXIT_FOUND, UserError
from danlu.recipe import Recipe
from danlu.run_folder import RECIPE, RunFolder

WAIT_SECONDS = 10.0


def serve(places: Sequence[Path], port: int | None, say: Callable[[str], None]) -> None:
    """Serve the runs in these places until interrupted. UserError: see `danlu.watch.server`."""
    from danlu.watch.server.runs import Runs
    from danlu.watch.server.serve import serve as serve_page

    serve_page(Runs(places), diagnosis, port, say)


def diagnosis(folder: Path) -> dict[str, Any]:
    """What `danlu doctor --json` says of a run.

    A long run takes it seconds of a whole core: so in a process of its own, which the page and a training go before.

    UserError: it cannot judge.
    """
    judged = folder if (folder / RECIPE).is_file() else folder / "metrics.sqlite"
    command = ["nice", sys.executable, "-m", "danlu", "doctor", "run", str(judged.resolve()), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode not in (0, EXIT_FOUND):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(said[-1].removeprefix("danlu: "))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def asked_for(recipe: Recipe, run: RunFolder, stream: TextIO) -> AbstractContextManager[None]:
    """`beside`, where the recipe wants it."""
    return beside(run.path, stream) if recipe.watch.page else nullcontext()


@contextmanager
def beside(run: Path, stream: TextIO) -> Iterator[None]:
    """A page of this run in a process of its own for as long as the body runs; its address is printed once.

    The run never depends on it: where the page cannot start, one line says why.
    """
    command = [sys.executable, "-m", "danlu", "watch", str(run), "--with-parent"]
    try:
        page = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream.fileno(), stderr=subprocess.STDOUT, start_new_session=True
        )
    except (OSError, ValueError) as error:
        print(f"the live page cannot start: {error}", file=stream, flush=True)
        yield
        return
    try:
        yield
    finally:
        page.terminate()
        with suppress(subprocess.TimeoutExpired):
            page.wait(WAIT_SECONDS)
        if page.poll() is None:
            page.kill()
            page.wait()
