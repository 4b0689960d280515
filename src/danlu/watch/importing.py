"""Another program's log as a run that the page, the doctor and the other verbs read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from danlu.errors import DanluError, UserError
from danlu.files import why
from danlu.watch import logs
from danlu.watch.formats.log import Spread
from danlu.watch.histogram import BINS, Histogram, edges, histogram
from danlu.watch.recorder import Recorder

IMPORTED = "imported"
"""Kind of the event that says where a run's metrics come from."""


def import_log(source: Path, run: Path) -> dict[str, int]:
    """Make a run folder of a log; returns how many signals, points and histograms it has.

    Signals that danlu knows under another name get its name; the others keep theirs. UserError: the folder is there and not
    empty, or the log cannot be read. DanluError: the disk does not take it.
    """
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"{run}: is there already; give another folder with --to")
    found = logs.read(source)
    signals = logs.renamed(found.signals)
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for name, (steps, values) in signals.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            by_step[step][name] = value
    spreads: dict[int, dict[str, Histogram]] = defaultdict(dict)
    for name, each in found.histograms.items():
        for spread in each:
            spreads[spread.step][name] = rebinned(spread)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{run}: cannot be written: {why(error)}") from None
    first = min([*by_step, *spreads])
    with Recorder.open(run / "metrics.sqlite") as recorder:
        recorder.start_segment(first, {IMPORTED: source.name} | found.settings)
        for step in sorted(by_step):
            recorder.scalars(step, by_step[step], found.times.get(step))
        for step in sorted(spreads):
            recorder.histograms(step, spreads[step])
        for step, _, name, text in found.texts:
            recorder.event(step, "text", f"{name}: {text}")
        last = max([*by_step, *spreads])
        recorder.event(last, IMPORTED, f"imported from {source.name}")
        recorder.event(last, "finished", "the end of the log")
        recorder.flush()
        if recorder.dropped:
            raise DanluError(f"{run / 'metrics.sqlite'}: {recorder.dropped} records could not be stored")
    points = sum(len(steps) for steps, _ in signals.values())
    return {"signals": len(signals), "points": points, "histograms": sum(map(len, found.histograms.values()))}


def rebinned(spread: Spread) -> Histogram:
    """Counts on danlu's bins: exact where each bin lies inside one of these, else all of a bin goes where its middle is."""
    used = np.flatnonzero(spread.counts)
    middles = (spread.edges[used] + spread.edges[used + 1]) / 2
    exponent = histogram(middles).exponent
    # A middle may lie below the power that the bin's own far edge reaches.
    place = np.clip(np.searchsorted(edges(exponent), middles, side="right") - 1, 0, BINS - 1)
    counts = np.bincount(place, weights=spread.counts[used], minlength=BINS)
    return Histogram(exponent, np.rint(counts).astype(np.int64))
