"""Whether two groups of documents differ by more than drawing them at random would make them: a permutation test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Text

DRAWS = 49
SIGMAS = 4.0
LEAST = 20
"""Documents of each group below which nothing can be told."""
MOST = 2000
"""Documents of each group that are compared, spread evenly."""

HOLD_OUT = Text(
    "hold out a share of the same documents that are trained on: equal weights, one set of sources",
    "从训练所用的同一批文档中留出验证集：权重一致、来源一致",
)
"""The way out of any difference between the splits."""


class Difference(NamedTuple):
    """A statistic beside what the same documents give when they are dealt out at random."""

    observed: float
    mean: float
    deviation: float

    @property
    def excess(self) -> float:
        """What is not by chance."""
        return self.observed - self.mean

    def beyond(self, least: float) -> bool:
        """Whether it is neither chance nor small."""
        return self.excess >= least and self.excess > SIGMAS * self.deviation


def spread(count: int) -> list[int]:
    """Numbers of the documents that are compared. NotEnoughData: there are too few."""
    if count < LEAST:
        raise NotEnoughData(f"{count} documents in one of the splits, {LEAST} are needed")
    chosen: list[int] = np.linspace(0, count - 1, min(count, MOST)).astype(int).tolist()
    return chosen


def difference(statistic: Callable[[Array], float], first: int, second: int) -> Difference:
    """`statistic` takes a bool a document, (first + second,): which are in the first group."""
    mask = np.arange(first + second) < first
    noise = np.random.default_rng(0)
    drawn = [statistic(noise.permutation(mask)) for _ in range(DRAWS)]
    return Difference(statistic(mask), float(np.mean(drawn)), float(np.std(drawn)))
