"""What a process of a layout does around its training: shows that it lives, makes sure of the others, says what ended it."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import danlu
from danlu import engines, environment, heartbeat
from danlu.environment import Place
from danlu.errors import DanluError, Interrupted, RunStopped, UserError
from danlu.launch import cause
from danlu.launch.start import logs_of
from danlu.launch.watchdog import Watchdog
from danlu.parent import end_with_parent
from danlu.recipe import Recipe


@contextmanager
def working(run: Path) -> Iterator[Place]:
    """One rank from its start to its end, whatever that is. UserError: this process is none of several."""
    end_with_parent()  # and the run folder is no longer locked for a rank whose launcher is gone
    rank = environment.place()
    if rank is None:
        raise UserError("`danlu worker` is one of several processes, and nothing says which; use `danlu train`")
    try:
        with cause.told(logs_of(run), rank.rank):
            yield rank
    except (Interrupted, RunStopped):
        heartbeat.doing(heartbeat.DONE)
        raise
    heartbeat.doing(heartbeat.DONE)


def begin(rank: Place, recipe: Recipe, data: str, run: Path, watches: bool) -> None:
    """Meet the other ranks. UserError, on all: some are not there, or do not hold the same recipe, code and data."""
    environment.check(recipe, rank)
    logs = logs_of(run)
    heartbeat.start(logs, rank.rank, engines.in_flight(recipe))
    if watches and rank.rank == 0:
        Watchdog(logs, range(1), recipe.watch.hang_seconds, _give_up).start()
    identity = {
        "recipe": recipe.model_dump(mode="json"),
        "danlu": f"{danlu.__version__}, code {code_digest()}",
        recipe.train.engine: engines.version(recipe),
        "data": data,
    }
    engines.meet(recipe, rank.rank, rank.processes).roll_call(identity, logs / "roll-call")


@functools.cache
def code_digest() -> str:
    """Of all of danlu's own source files: two copies of one version may differ."""
    digest = hashlib.sha256()
    root = Path(danlu.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _give_up(verdict: str) -> None:
    """The first rank ends itself, and with it the others, whose connection to it is gone."""
    print(f"danlu: {verdict}", file=sys.stderr, flush=True)
    os._exit(DanluError.exit_code)
