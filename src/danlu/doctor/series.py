"""One signal over the steps, and the robust statistics that rules judge it by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

SIGMA = 1.4826
"""A normal distribution's standard deviation / its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median of normal values / that of their mean: the root of pi / 2."""
MEDIANS = 20_000
"""Medians of a running median at most."""
LEVELS = 400
"""Points of a level at most: what bounds the cost of a rule, however long the run."""


@dataclass(frozen=True, eq=False)
class Series:
    """Values (n) at rising steps (n). NaN and infinities are what the run logged; a step that logged nothing is not there."""

    steps: Steps
    values: Values

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def finite(self) -> Series:
        """The points whose value is finite."""
        good = np.isfinite(self.values)
        return self if good.all() else Series(self.steps[good], self.values[good])

    @cached_property
    def level(self) -> Series:
        """Medians of LEVELS equal buckets at most, each at its last step; a short series is its own level."""
        series = self.finite
        if len(series) <= LEVELS:
            return series
        edges = np.linspace(0, len(series), LEVELS + 1).astype(np.int64)
        medians = [float(np.median(series.values[start:stop])) for start, stop in pairwise(edges)]
        return Series(series.steps[edges[1:] - 1], np.array(medians))

    @cached_property
    def noise(self) -> float:
        """Standard deviation of one value about the trend, from the median first difference, which a spike hardly moves."""
        values = self.finite.values
        return float(SIGMA * np.median(np.abs(np.diff(values))) / np.sqrt(2)) if len(values) > 2 else 0.0

    @property
    def span(self) -> int:
        """Steps from the first to the last point."""
        return int(self.steps[-1] - self.steps[0]) if len(self) else 0

    def between(self, first: float, last: float) -> Series:
        """The points with first <= step <= last."""
        start, stop = np.searchsorted(self.steps, [first, last + 0.5])
        return Series(self.steps[start:stop], self.values[start:stop])

    def first_above(self, least: float) -> tuple[int, float] | None:
        """(step, value) of the first finite value above this; None where there is none."""
        series = self.finite
        above = np.flatnonzero(series.values > least)
        return (int(series.steps[above[0]]), float(series.values[above[0]])) if len(above) else None

    def share_above_first(self, sigmas: float) -> float:
        """Share of the steps at which the level is above the first value by so many standard deviations of one value."""
        level, first = self.level, float(self.finite.values[0])
        return level.share_of_steps(level.values > first + sigmas * self.noise)

    def share_of_steps(self, mask: npt.NDArray[np.bool_]) -> float:
        """Share of the span that the marked points stand for; each stands for the steps since the point before it."""
        if len(self) < 2 or not self.span:
            return 0.0
        return float(np.diff(self.steps)[mask[1:]].sum() / self.span)


def series(steps: npt.ArrayLike, values: npt.ArrayLike) -> Series:
    """A series from anything like an array: sorted by step, and of equal steps the last that was logged."""
    steps_array = np.asarray(steps, dtype=np.int64)
    values_array = np.asarray(values, dtype=np.float64)
    rising, last = np.unique(steps_array[::-1], return_index=True)
    return Series(rising, values_array[::-1][last])


def runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of true values as (start, stop), stop excluded."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def trailing_median(values: Values, width: int) -> Values:
    """For each point the median of up to `width` points before it; NaN for the first, which has none."""
    result = np.full(len(values), np.nan)
    for at in range(1, min(width, len(values))):
        result[at] = np.median(values[:at])
    if len(values) > width:
        # Of very long series every n-th median is taken and held: what bounds time and memory.
        stride = 1 + (len(values) - width) // MEDIANS
        windows = np.lib.stride_tricks.sliding_window_view(values, width)[:-1:stride]
        result[width:] = np.repeat(np.median(windows, axis=1), stride)[: len(values) - width]
    return result
