"""Start the ranks of a run on this machine, watch them, and end with the error of the one that is at fault."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from danlu import engines
from danlu.environment import Nodes
from danlu.errors import UserError
from danlu.heartbeat import beat_file
from danlu.launch.watchdog import watching
from danlu.recipe import Recipe

FOLDER_SECONDS = 600


def logs_of(run: Path) -> Path:
    return run / "logs"


def node_logs(run: Path, nodes: Nodes) -> Path:
    """What the ranks of one machine print."""
    return logs_of(run) / f"node-{nodes.rank}"


def clear(run: Path) -> None:
    """Remove what the start before has left in the logs; the first machine, or the first process, does.

    The other machines clear their own folders, in which they may be at work.
    """
    logs_of(run).mkdir(exist_ok=True)
    for path in logs_of(run).iterdir():
        if path.is_dir() and not path.name.startswith("node-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def own_ranks(recipe: Recipe, nodes: Nodes) -> range:
    """The ranks of this machine. UserError: the layout does not spread evenly over the machines."""
    processes = recipe.parallel.processes
    if processes % nodes.count:
        raise UserError(
            f"--nodes {nodes.count}: data x tensor x pipeline = {processes} does not spread evenly over {nodes.count} machines"
        )
    each = processes // nodes.count
    return range(nodes.rank * each, (nodes.rank + 1) * each)


def await_folder(run: Path, seconds: float = FOLDER_SECONDS) -> None:
    """Wait for the first machine to make the run's folder. UserError: it does not, or this machine does not see it."""
    until = time.monotonic() + seconds
    while not (run / "recipe.yaml").is_file():
        if time.monotonic() > until:
            raise UserError(
                f"{run}: the first machine (--node-rank 0) made no run folder there within {seconds:g} seconds; start it too, "
                "and put the runs on a file system that all machines share"
            )
        time.sleep(0.2)


def start(recipe: Recipe, run: Path, nodes: Nodes) -> None:
    """Train a run whose data is prepared, in this machine's processes of its layout.

    DanluError: what ended the rank that failed first, here or on another machine, or that they got stuck.
    """
    own = own_ranks(recipe, nodes)
    if nodes.rank == 0:
        clear(run)
    logs_of(run).mkdir(parents=True, exist_ok=True)
    for rank in own:  # so that the watchdog takes none of an earlier start for one of its own
        beat_file(logs_of(run), rank).unlink(missing_ok=True)
    shutil.rmtree(node_logs(run, nodes), ignore_errors=True)
    node_logs(run, nodes).mkdir()
    with watching(logs_of(run), own, recipe.watch.hang_seconds):
        engines.launch(recipe, run, logs_of(run), node_logs(run, nodes), own, nodes)
