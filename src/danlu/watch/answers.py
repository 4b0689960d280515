"""What a page asks of metrics: curves as fine as the screen, the axes they can be drawn over, the newest values."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from danlu.errors import UserError
from danlu.watch import store
from danlu.watch.axes import Axis, axes
from danlu.watch.coarse import Coarse
from danlu.watch.curves import Floats, curve, figure_or_text, numbers
from danlu.watch.ends import mark, newest
from danlu.watch.signals import Signals


class Answers:
    """Each method is one question of the page. What is unknown is left out of the answer."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self._axes: dict[Path, tuple[Any, dict[str, Axis]]] = {}
        self._finding_axes = threading.Lock()
        self._coarse: dict[tuple[Path, str], tuple[Any, int, Coarse]] = {}
        self._first_sights = ThreadPoolExecutor(1, "danlu-first-sights")

    def curves(
        self,
        runs: Mapping[str, Path],
        names: list[str],
        axis: str = "step",
        within: tuple[float, float] | None = None,
        points: int = 2000,
        logarithmic: bool = False,
        at_once: bool = True,
    ) -> dict[str, dict[str, Any]]:
        """Name -> run -> `curve`, of the metrics files of `runs`; `within` is in units of the axis.

        With `at_once`, a long signal that is not in memory yet comes in columns of equal steps, with `coarse` set: ask again.
        """
        found: dict[str, dict[str, Any]] = {name: {} for name in names}
        for run, metrics in runs.items():
            with suppress(UserError):  # its state says what is wrong with it
                place = self._places(metrics).get(axis)
                for name in names:
                    if (
                        place is not None
                        and (one := self._curve(metrics, name, place, within, points, logarithmic, at_once)) is not None
                    ):
                        found[name][run] = one
        return found

    def _curve(
        self,
        metrics: Path,
        name: str,
        place: Axis,
        within: tuple[float, float] | None,
        points: int,
        logarithmic: bool,
        at_once: bool,
    ) -> dict[str, Any] | None:
        held = self.signals.soon(metrics, name) if at_once else self.signals.series(metrics, name)
        if held is None:
            return _preview(self._seen(metrics, name, points), newest(metrics, name)[1], place, within)
        self._coarse.pop((metrics, name), None)
        steps, values = held
        return curve(place.place(steps), values, within, points, logarithmic) if len(steps) else None

    def _seen(self, metrics: Path, name: str, points: int) -> Coarse:
        """A first sight; they are taken one after the other, so that the first chart is the first to be drawn."""

        def look() -> Coarse:
            now, known = mark(metrics), self._coarse.get((metrics, name))
            if known is None or known[:2] != (now, points):
                known = self._coarse[metrics, name] = now, points, Coarse(metrics, name, points)
            return known[2]

        return self._first_sights.submit(look).result()

    def names(self, metrics: Path) -> list[str]:
        """The signals of a run; none where its file cannot be read."""
        try:
            return store.names(metrics)
        except UserError:
            return []

    def axes(self, metrics: Path) -> dict[str, dict[str, Any]]:
        """Axis -> `steps` and where they lie on it, `x`: what a page needs to place a step."""
        try:
            known = self._places(metrics)
        except UserError:  # it is among the problems of the run
            return {}
        return {axis: {"steps": one.steps.tolist(), "x": one.x.tolist()} for axis, one in known.items()}

    def _places(self, metrics: Path) -> dict[str, Axis]:
        """The axes of a run, found anew when its file has changed."""
        with self._finding_axes:  # once for all charts that ask at the same time
            now, known = mark(metrics), self._axes.get(metrics)
            if known is None or known[0] != now:
                known = self._axes[metrics] = now, axes(metrics)
            return known[1]

    def newest(self, metrics: Path, names: list[str]) -> dict[str, float | str]:
        """Name -> last value, as text where it is not finite."""
        found = {name: newest(metrics, name)[1] for name in names} if metrics.is_file() else {}
        return {name: figure_or_text(float(values[-1])) for name, values in found.items() if len(values)}


def _preview(seen: Coarse, last: Floats, place: Axis, within: tuple[float, float] | None) -> dict[str, Any]:
    """What `curve` says, of the whole signal, from the columns that SQLite finds."""
    low, high = within or (-math.inf, math.inf)
    x = place.place(seen.steps)
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
