"""What is seen of a run while it trains and afterwards.

`log_to` puts your own figures beside a run's, or makes a run of your own training loop:

    with danlu.watch.log_to("runs/mine") as log:
        log.scalars(step, {"mine/score": 0.7})
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danlu.watch.recorder import Recorder


def log_to(run: Path | str) -> Recorder:
    """A recorder of a run folder, which is made if it is not there; to be closed, or used in a ``with``.

    ``scalars(step, {name: value})``, ``histograms(step, {name: danlu.watch.histogram.histogram(array)})`` and
    ``event(step, kind, message)`` never fail and never wait. A run that danlu trains meanwhile is not disturbed: what is logged
    belongs to its newest start, and goes with it when a resume replaces its steps. Call signals ``group/name``, in a group of
    yours. A folder without metrics becomes a run of your own; end it with an event of kind ``finished``, or it counts as broken
    off.
    """
    from danlu.watch.recorder import Recorder

    folder = Path(run)
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder.open(folder / "metrics.sqlite")
    recorder.attach()
    return recorder
