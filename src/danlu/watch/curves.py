"""Curves to draw: long series thinned so that their extremes survive, in a form that JSON can hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

POINTS = 2000
"""Points of one curve that are drawn, gaps apart; a screen has no more columns than that."""

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def curve(
    x: npt.NDArray[Any],
    values: Floats,
    within: tuple[float, float] | None = None,
    points: int = POINTS,
    logarithmic: bool = False,
) -> dict[str, Any]:
    """One curve as JSON: the points to draw, and what is needed to be honest about them.

    `x` rises. `within` is the part of the axis that is looked at; one point on either side of it comes along, so that the line
    runs to the edge. The columns are of equal width on the axis, or on its logarithm.

    `x` and `y` of the result are the points drawn, where null is a value that is not finite; `points` is how many there are in
    all, `inside` how many within, `shown` how many of those are drawn, `not_finite` how many are NaN or infinite. A thinned
    curve also has `mean_x` and `mean`, the mean of every column: smoothing must run over these, as the extremes alone would bias
    it. `last` is the last value of all as text or number.
    """
    first, stop = (0, len(x)) if within is None else _inside(x, *within)
    before, after = max(0, first - 1), min(len(x), stop + 1)
    x_seen, seen = x[before:after], values[before:after]
    not_finite = ~np.isfinite(values[first:stop])
    result: dict[str, Any] = {"points": len(x), "inside": stop - first, "not_finite": int(not_finite.sum())}
    edges = _columns(x_seen, max(1, (points - 2) // 2), logarithmic) if len(seen) > points else None
    kept = np.arange(len(seen)) if edges is None else _extremes(seen, edges)
    result["x"] = numbers(x_seen[kept])
    result["y"] = numbers(seen[kept])
    result["shown"] = int(np.count_nonzero((kept >= first - before) & (kept < stop - before)))
    result["last"] = figure_or_text(float(values[-1])) if len(values) else None
    if edges is not None:
        result["mean_x"], result["mean"] = _means(x_seen, seen, edges)
    return result


def _inside(x: npt.NDArray[Any], low: float, high: float) -> tuple[int, int]:
    return int(np.searchsorted(x, low, "left")), int(np.searchsorted(x, high, "right"))


def _columns(x: npt.NDArray[Any], columns: int, logarithmic: bool) -> Indices:
    """Where the columns that hold points begin, and the end: indices into `x`, strictly rising."""
    low, high = float(x[0]), float(x[-1])
    if logarithmic and high > 0:
        low = float(x[np.searchsorted(x, 0, "right")])
        bounds = np.geomspace(low, high, columns + 1)[1:-1]
    else:
        high += (high - low) / max(1, len(x) - 1)  # a point stands for the stretch up to the next one
        bounds = np.linspace(low, high, columns + 1)[1:-1]
    return np.unique(np.concatenate([[0], np.searchsorted(x, bounds), [len(x)]]))


def _extremes(values: Floats, edges: Indices) -> Indices:
    """Indices, rising, of the smallest and the largest finite value of every column and of its first that is not finite.

    So a gap stays a gap. The first and the last value are always kept.
    """
    finite = np.isfinite(values)
    low, high = np.where(finite, values, math.inf), np.where(finite, values, -math.inf)
    kept = [np.array([0, len(values) - 1])]
    for ends in (np.minimum.reduceat(low, edges[:-1]), np.maximum.reduceat(high, edges[:-1])):
        kept.append(_first_of_each(finite & (values == np.repeat(ends, np.diff(edges))), edges))
    kept.append(_first_of_each(~finite, edges))
    return np.unique(np.concatenate(kept))


def _first_of_each(wanted: npt.NDArray[np.bool_], edges: Indices) -> Indices:
    """The first wanted index of every column that has one."""
    found = np.flatnonzero(wanted)
    at = np.searchsorted(found, edges[:-1])
    inside = at < len(found)
    first = found[at[inside]]
    return first[first < edges[1:][inside]]


def _means(x: npt.NDArray[Any], values: Floats, edges: Indices) -> tuple[list[float | None], list[float | None]]:
    """Middle and mean finite value of every column; null where it has none."""
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, edges[:-1], dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges[:-1])
    means = np.divide(sums, counts, out=np.full(len(counts), math.nan), where=counts > 0)
    return numbers(x[(edges[:-1] + edges[1:] - 1) // 2]), numbers(means)


def numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """Seven digits of floats, which is what single precision holds, and null for what JSON cannot; whole numbers as they are."""
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()  # type: ignore[no-any-return]
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def figure_or_text(value: float) -> float | str:
    """A value as JSON can hold it."""
    return value if math.isfinite(value) else str(value)
