"""What a page draws as pictures: a statistic of all layers over the steps, and the histograms of one tensor over the steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from danlu.watch import store
from danlu.watch.curves import Floats
from danlu.watch.histogram import SIDE
from danlu.watch.signals import Signals

COLUMNS = 240
"""Columns of a picture, at most; where there are more steps, a column holds the mean of several."""
LAYER = re.compile(r"layer/(?P<layer>.+)/(?P<kind>[^/]+)")


def layer_kinds(names: Sequence[str]) -> list[str]:
    """The statistics of layers that are among these signals."""
    return sorted({match["kind"] for name in names if (match := LAYER.fullmatch(name))})


def layers(signals: Signals, metrics: Path, kind: str, columns: int = COLUMNS) -> dict[str, Any]:
    """One statistic: `rows` for the `layers`, a value for each of the `steps` at which columns begin; null: nothing finite.

    `low` and `high` are the range of the values, `points` how many steps there are in all, `until` the last one.
    """
    names = [name for name in store.names(metrics) if (match := LAYER.fullmatch(name)) and match["kind"] == kind]
    read = {name: signals.series(metrics, name) for name in sorted(names, key=natural)}
    steps = np.unique(np.concatenate([one for one, _ in read.values()])) if read else np.empty(0, dtype=np.int64)
    if not len(steps):
        return {"kind": kind, "layers": [], "steps": [], "rows": [], "low": None, "high": None, "points": 0, "until": None}
    starts = _starts(steps, columns)
    rows = np.array([_means(*one, starts) for one in read.values()])
    finite = rows[np.isfinite(rows)]
    return {
        "kind": kind,
        "layers": [name.removeprefix("layer/").removesuffix(f"/{kind}") for name in read],
        "steps": starts.tolist(),
        "until": int(steps[-1]),
        "rows": _figures(rows),
        "low": _figure(float(finite.min())) if len(finite) else None,
        "high": _figure(float(finite.max())) if len(finite) else None,
        "points": len(steps),
    }


def histograms(metrics: Path, name: str, columns: int = COLUMNS) -> dict[str, Any]:
    """`rows` from the largest bin to the most negative one: the share of the entries in it, a value for each of the `steps`.

    `edges` are the lower and upper end of each row. All histograms share one grid of half-octaves; between its smallest positive
    and negative bins lies one row for what is smaller. Rows without any entry are left out at the ends.
    """
    found = store.histograms(metrics, name)
    if not len(found.steps):
        return {"name": name, "steps": [], "rows": [], "edges": [], "high": None, "points": 0, "until": None}
    grid, least = _on_one_grid(found)
    shares = grid / np.maximum(1, grid.sum(axis=1, keepdims=True))
    starts = _starts(found.steps, columns)
    column = np.searchsorted(starts, found.steps, "right") - 1
    sums = np.zeros((len(starts), grid.shape[1]))
    np.add.at(sums, column, shares)
    means = sums / np.bincount(column, minlength=len(starts))[:, None]
    used = np.flatnonzero(means.any(axis=0))
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, grid.shape[1] - 1)
    bounds = 2.0 ** ((least + np.arange(grid.shape[1] // 2 + 1)) / 2)
    edges = np.concatenate((-bounds[::-1], bounds))
    return {
        "name": name,
        "steps": starts.tolist(),
        "until": int(found.steps[-1]),
        "rows": _figures(np.where(means > 0, means, math.nan).T[first : last + 1][::-1]),
        "edges": [[_figure(edges[row]), _figure(edges[row + 1])] for row in range(last, first - 1, -1)],
        "high": _figure(float(means.max())),
        "points": len(found.steps),
        "not_finite": int(found.not_finite.sum()),
    }


def _on_one_grid(found: store.Histograms) -> tuple[npt.NDArray[np.int64], int]:
    """Counts (n, 2 m + 1): m negative half-octaves, what is smaller, m positive ones; and the power of the smallest edge.

    Powers are those of the square root of 2. Of a histogram with exponent e, bin 32 + i, i > 0, begins at e - 32 + i.
    """
    top, least = int(found.exponents.max()), int(found.exponents.min()) - SIDE + 1
    half = top - least
    grid = np.zeros((len(found.steps), 2 * half + 1), dtype=np.int64)
    middle = half
    grid[:, middle] = found.counts[:, SIDE - 1] + found.counts[:, SIDE]
    for at, exponent in enumerate(found.exponents.tolist()):
        shift = exponent - SIDE + 1 - least  # of its first bin beside those next to 0
        grid[at, middle + 1 + shift : middle + shift + SIDE] = found.counts[at, SIDE + 1 :]
        grid[at, middle - shift - SIDE + 1 : middle - shift] = found.counts[at, : SIDE - 1]
    return grid, least


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts layers by number: layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _starts(steps: npt.NDArray[np.int64], columns: int) -> npt.NDArray[np.int64]:
    """The steps at which columns of about as many steps each begin."""
    return steps[np.unique(np.linspace(0, len(steps), min(columns, len(steps)) + 1).astype(np.int64)[:-1])]


def _means(steps: npt.NDArray[np.int64], values: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """The mean of the finite values from each start to the next; NaN where there is none."""
    column = np.searchsorted(starts, steps, "right") - 1
    finite = np.isfinite(values)
    count = np.bincount(column[finite], minlength=len(starts))
    total = np.bincount(column[finite], weights=values[finite], minlength=len(starts))
    means: Floats = np.divide(total, count, out=np.full(len(starts), math.nan), where=count > 0)
    return means


def _figures(rows: Floats) -> list[list[float | None]]:
    return [[_figure(value) for value in row] for row in rows.tolist()]


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
