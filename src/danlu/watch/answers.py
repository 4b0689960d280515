"""What a page asks of metrics: curves as fine as the screen, layers by steps, histograms over time."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from danlu.watch import store
from danlu.watch.axes import Axis, axes
from danlu.watch.coarse import Coarse
from danlu.watch.curves import Floats, curve, figure_or_text, numbers
from danlu.watch.ends import mark, newest
from danlu.watch.signals import Signals

COLUMNS = 240
"""Columns of a picture of layers or histograms over time, at most."""
LAYER = re.compile(r"layer/(?P<layer>.+)/(?P<kind>[^/]+)")


class Answers:
    """Each method is one question of the page. What is unknown is left out of the answer."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self._axes: dict[Path, tuple[Any, dict[str, Axis]]] = {}
        self._first_sight = threading.Lock()

    def curves(
        self,
        runs: Mapping[str, Path],
        names: list[str],
        axis: str = "step",
        within: tuple[float, float] | None = None,
        points: int = 2000,
        logarithmic: bool = False,
    ) -> dict[str, dict[str, Any]]:
        """Name -> run -> `curve`, of the metrics files of `runs`; `within` is in units of the axis.

        A long signal that is not in memory yet is answered at once and in columns of equal steps, with `coarse` set: ask again.
        """
        found: dict[str, dict[str, Any]] = {name: {} for name in names}
        for run, metrics in runs.items():
            place = self._places(metrics).get(axis)
            if place is None:
                continue
            for name in names:
                held = self.signals.soon(metrics, name)
                if held is None:
                    with self._first_sight:  # one at a time: the first chart is the first to be drawn
                        found[name][run] = _preview(metrics, name, place, within, points)
                elif len(held[0]):
                    steps, values = held
                    found[name][run] = curve(steps if axis == "step" else place.place(steps), values, within, points, logarithmic)
        return found

    def axes(self, metrics: Path) -> dict[str, dict[str, Any]]:
        """Axis -> `steps` and where they lie on it, `x`: what a page needs to place a step."""
        return {axis: {"steps": one.steps.tolist(), "x": one.x.tolist()} for axis, one in self._places(metrics).items()}

    def _places(self, metrics: Path) -> dict[str, Axis]:
        """The axes of a run, found anew when its file has changed."""
        now = mark(metrics)
        known = self._axes.get(metrics)
        if known is None or known[0] != now:
            known = self._axes[metrics] = now, axes(metrics)
        return known[1]

    def newest(self, metrics: Path, names: list[str]) -> dict[str, float | str]:
        """Name -> last value, as text where it is not finite."""
        found = {name: newest(metrics, name)[1] for name in names} if metrics.is_file() else {}
        return {name: figure_or_text(float(values[-1])) for name, values in found.items() if len(values)}

    def layers(self, metrics: Path, kind: str, within: tuple[float, float] | None = None) -> dict[str, Any]:
        """One kind of statistic of all layers: `rows` of one value a column of `steps`, the mean where a column holds several.

        Null: nothing finite. `low` and `high` are the range of the values.
        """
        names = [name for name in store.names(metrics) if (match := LAYER.fullmatch(name)) and match["kind"] == kind]
        read = {name: _cut(*self.signals.series(metrics, name), within) for name in sorted(names, key=natural)}
        steps = np.unique(np.concatenate([one for one, _ in read.values()])) if read else np.empty(0, dtype=np.int64)
        if not len(steps):
            return {"kind": kind, "layers": [], "steps": [], "rows": [], "low": None, "high": None, "points": 0}
        starts = steps[np.unique(np.linspace(0, len(steps), min(COLUMNS, len(steps)) + 1).astype(np.int64)[:-1])]
        rows = np.array([_means(*one, starts) for one in read.values()])
        finite = rows[np.isfinite(rows)]
        return {
            "kind": kind,
            "layers": [LAYER.fullmatch(name)["layer"] for name in read],  # type: ignore[index]
            "steps": starts.tolist(),
            "until": int(steps[-1]),
            "rows": [[_figure(value) for value in row] for row in rows.tolist()],
            "low": _figure(float(finite.min())) if len(finite) else None,
            "high": _figure(float(finite.max())) if len(finite) else None,
            "points": len(steps),
        }


def _preview(metrics: Path, name: str, place: Axis, within: tuple[float, float] | None, points: int) -> dict[str, Any]:
    """What `curve` says, of the whole signal, from the columns that SQLite finds."""
    seen = Coarse(metrics, name, points)
    low, high = within or (-math.inf, math.inf)
    x = place.place(seen.steps)
    _, last = newest(metrics, name)
    return {
        "coarse": True,
        "points": seen.points,
        "inside": seen.points,
        "shown": int(np.count_nonzero((x >= low) & (x <= high))),
        "not_finite": seen.not_finite,
        "x": numbers(x),
        "y": numbers(seen.values),
        "mean_x": numbers(place.place(seen.middles)),
        "mean": numbers(seen.means),
        "last": figure_or_text(float(last[-1])) if len(last) else None,
    }


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts layers by number: layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _cut(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], within: tuple[float, float] | None) -> store.Series:
    if within is None:
        return steps, values
    first, stop = np.searchsorted(steps, within[0], "left"), np.searchsorted(steps, within[1], "right")
    return steps[first:stop], values[first:stop]


def _means(steps: npt.NDArray[np.int64], values: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """The mean of the finite values from each start to the next; NaN where there is none."""
    column = np.searchsorted(starts, steps, "right") - 1
    finite = np.isfinite(values)
    count = np.bincount(column[finite], minlength=len(starts))
    total = np.bincount(column[finite], weights=values[finite], minlength=len(starts))
    means: Floats = np.divide(total, count, out=np.full(len(starts), math.nan), where=count > 0)
    return means


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
