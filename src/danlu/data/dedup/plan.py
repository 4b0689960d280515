"""The numbers of MinHash LSH that belong together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from danlu.data.arrays import Array
from danlu.recipe.curate_sections import DedupSection

SURE = 0.985
"""Chance at which a pair just at the threshold must meet in a band, when rows are chosen."""
DEVIATIONS = 2.5
"""How far below the threshold, in standard deviations of the estimate, a pair still counts as alike."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Permutations, how they are cut into bands, and when a pair is taken for copies.

    Each minimum serves in two bands of `rows`, once among its neighbours and once among every (permutations / rows)-th, so
    that a pair of Jaccard J meets with a chance of 1 - (1 - J^rows)^(2 permutations / rows) or a little less.
    """

    threshold: float
    permutations: int
    rows: int
    shingle: int
    verify: Literal["estimate", "exact"]

    @property
    def equal(self) -> bool:
        """Whether only documents of the same words in the same order are copies, so that no MinHash is needed."""
        return self.threshold == 1

    @property
    def bands(self) -> int:
        """Bands of one cut; there are two."""
        return self.permutations // self.rows

    @property
    def least_estimate(self) -> float:
        """Jaccard, as estimated from all minima, below which a pair that met in a band is let go.

        The estimate has a variance of J (1 - J) / permutations (Broder 1997).
        """
        if self.equal:
            return 1.0
        spread = math.sqrt(self.threshold * (1 - self.threshold) / self.permutations)
        return max(0.0, self.threshold - DEVIATIONS * spread)

    def coefficients(self) -> tuple[Array, Array]:
        """Odd factors and summands of the permutations x -> a x + b (mod 2^32), the same everywhere: SplitMix64."""
        drawn = []
        state = 0
        for _ in range(2 * self.permutations):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
            drawn.append((mixed ^ mixed >> 31) >> 32)
        factors, summands = np.array(drawn, np.uint32).reshape(2, self.permutations)
        return factors | np.uint32(1), summands


def rows_for(threshold: float, permutations: int) -> int:
    """The most rows a band may have so that a pair at the threshold is found with a chance of SURE or more."""
    for rows in range(permutations, 1, -1):
        if permutations % rows == 0 and 1 - (1 - threshold**rows) ** (2 * permutations // rows) >= SURE:
            return rows
    return 1


def plan_of(section: DedupSection) -> Plan:
    """The plan that a recipe's section asks for."""
    if section.threshold == 1:
        return Plan(1.0, 0, 1, section.shingle, "estimate")
    rows = section.rows or rows_for(section.threshold, section.permutations)
    return Plan(section.threshold, section.permutations, rows, section.shingle, section.verify)
