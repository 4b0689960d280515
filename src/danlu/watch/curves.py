"""Curves for a report: long series thinned so that their extremes survive, in a form that JSON can hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from danlu.watch import store

POINTS = 2000
"""Points of one curve that are drawn, gaps apart; a screen has no more columns than that."""


def curves(metrics: Path) -> dict[str, dict[str, Any]]:
    """Every recorded signal that has values, thinned: name -> `curve`."""
    found = ((name, store.series(metrics, name)) for name in store.names(metrics))
    return {name: curve(steps, values) for name, (steps, values) in found if steps.size}


def curve(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """One curve as JSON: the points to draw, and what is needed to be honest about them.

    `steps` and `values` are the points drawn, where null is a value that is not finite; `points` is how many there are in all
    and `not_finite` how many of them are NaN or infinite. A thinned curve also has `mean_steps` and `means`, the mean of every
    bucket: smoothing must run over these, as the extremes alone would bias it. `last` is the last value as text or number.
    """
    not_finite = ~np.isfinite(values)
    kept = thinned(values, POINTS)
    result: dict[str, Any] = {
        "points": len(values),
        "not_finite": int(not_finite.sum()),
        "steps": steps[kept].tolist(),
        "values": [_number(value) for value in values[kept].tolist()],
        "last": _last(float(values[-1])),
    }
    if len(kept) < len(values):
        result["mean_steps"], result["means"] = _means(steps, values, POINTS // 2)
    return result


def thinned(values: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.int64]:
    """Indices, rising, of at most `points` values, and one for every gap, that keep the look of all of them.

    Of every bucket the smallest and the largest finite value are kept, and the first that is not finite, so that a gap stays a
    gap; the first and the last value always. Short series are kept whole.
    """
    if len(values) <= points:
        return np.arange(len(values))
    edges = _edges(len(values), (points - 2) // 2)
    finite = np.isfinite(values)
    kept = [0, len(values) - 1]
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        good = np.flatnonzero(finite[start:stop])
        if len(good):
            bucket = values[start:stop][good]
            kept += [start + int(good[np.argmin(bucket)]), start + int(good[np.argmax(bucket)])]
        if len(good) < stop - start:
            kept.append(start + int(np.argmin(finite[start:stop])))
    return np.unique(np.array(kept))


def _means(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], buckets: int) -> tuple[list[int], list[float | None]]:
    """Middle step and mean finite value of every bucket; null where a bucket has none."""
    edges = _edges(len(values), buckets)
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, edges[:-1], dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges[:-1])
    means = np.divide(sums, counts, out=np.full(len(counts), math.nan), where=counts > 0)
    middles = steps[(edges[:-1] + edges[1:] - 1) // 2]
    return middles.tolist(), [_number(value) for value in means.tolist()]


def _edges(length: int, buckets: int) -> npt.NDArray[np.int64]:
    """Bounds of `buckets` spans of nearly equal length, none empty."""
    return np.linspace(0, length, buckets + 1).astype(np.int64)


def _number(value: float) -> float | None:
    """Seven digits, which is what single precision holds; null for what JSON cannot."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _last(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
