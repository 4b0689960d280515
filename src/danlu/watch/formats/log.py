"""What a log of another program holds, and what a writer of one takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from danlu.watch.histogram import Histogram

Setting = str | int | float | bool


class Point(NamedTuple):
    """One value of a scalar; the time is seconds since 1970, 0 where the log has none."""

    step: int
    time: float
    value: float


class Spread(NamedTuple):
    """One histogram: n counts between n + 1 edges that rise."""

    step: int
    time: float
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


@dataclass
class Log:
    """By name, in the order in which they were written: of equal steps the last counts."""

    scalars: dict[str, list[Point]] = field(default_factory=dict)
    histograms: dict[str, list[Spread]] = field(default_factory=dict)
    texts: list[tuple[int, float, str, str]] = field(default_factory=list)
    """Step, time, name, text."""
    settings: dict[str, Setting] = field(default_factory=dict)
    restart: int | None = None
    """The step at which the run went on, where it is said: what was written of it and of later ones before is replaced."""

    def add(self, other: Log) -> None:
        """What was written later."""
        if other.restart is not None:
            self.forget_from(other.restart)
        for name, points in other.scalars.items():
            self.scalars.setdefault(name, []).extend(points)
        for name, spreads in other.histograms.items():
            self.histograms.setdefault(name, []).extend(spreads)
        self.texts += other.texts
        self.settings |= other.settings

    def forget_from(self, step: int) -> None:
        """Drop what was written of this step and later ones."""
        self.scalars = {name: [each for each in points if each.step < step] for name, points in self.scalars.items()}
        self.histograms = {name: [each for each in spreads if each.step < step] for name, spreads in self.histograms.items()}
        self.texts = [each for each in self.texts if each[0] < step]


class Writer(Protocol):
    """Writes one file of such a format. Times are seconds since 1970. OSError: the disk does not take it."""

    def scalar(self, name: str, step: int, time: float, value: float) -> None: ...

    def histogram(self, name: str, step: int, time: float, found: Histogram) -> None: ...

    def text(self, name: str, step: int, time: float, text: str) -> None: ...

    def settings(self, time: float, values: dict[str, Setting]) -> None:
        """Hyper-parameters."""

    def flush(self) -> None: ...

    def close(self) -> None: ...
