"""`danlu train` in processes that torchrun or srun has started: the first one prepares, then all train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from danlu import engines, live_page, stages
from danlu.environment import Place, check
from danlu.errors import DanluError
from danlu.launch.start import clear
from danlu.plural import many
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder


def train(
    rank: Place, recipe: Recipe, path: Path, create: Callable[[], RunFolder], report: Callable[[str], None], stream: TextIO
) -> None:
    """Train the run below ``path``, which the first rank makes with ``create``. DanluError: the first rank's, on all of them."""
    check(recipe, rank)
    meeting = engines.meet(recipe, rank.rank, rank.processes)
    if rank.rank:
        word = meeting.listen()
        if "error" in word:
            error = DanluError(word["error"])
            error.exit_code = word["exit_code"]
            raise error
        if not word["finished"]:
            stages.worker(RunFolder.open(path), stream, watches=True)
        return
    try:
        run = create()
        with stages.writing(run):
            prepared = stages.prepare(recipe, run, report)
            summary = stages.finished(recipe, run, prepared, report)
            clear(run.path)
            meeting.announce({"finished": summary is not None})
            if summary is not None:
                report(f"already trained: {summary['steps']} of {many(recipe.train.steps, 'step')}")
            else:
                with live_page.asked_for(recipe, run, stream):
                    stages.worker(run, stream, watches=True)
    except Exception as error:
        # Counts only when nothing was announced yet; the others would wait for it.
        code = error.exit_code if isinstance(error, DanluError) else 1
        text = str(error) if isinstance(error, DanluError) else f"rank 0 failed: {type(error).__name__}: {error}"
        meeting.announce({"error": text, "exit_code": code})
        raise
