"""Which texts are copies of one another, exact or near, by the sketches and shingles of near-duplicate removal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from danlu.data.dedup.plan import Plan, rows_for
from danlu.data.dedup.sketch import DIGESTS, Sketcher, back_to_back

THRESHOLD = 0.8
"""Jaccard similarity of 5-word shingles from which on two texts are copies (Lee et al. 2022, section 4.2)."""
PERMUTATIONS, SHINGLE = 112, 5
SHORTEST = 20
"""Shingles below which a text is nobody's copy: everyday phrases would count."""


def copies(texts: Sequence[str]) -> list[int]:
    """For each text the number of the first that it copies, directly or over others; its own number where it is the first."""
    data = [text.encode() for text in texts]
    above = list(range(len(data)))
    if not data:
        return above
    sketcher = Sketcher(Plan(THRESHOLD, PERMUTATIONS, rows_for(THRESHOLD, PERMUTATIONS), SHINGLE, "exact"))
    keys = sketcher.sketch(*back_to_back(data))[0][:, DIGESTS:]
    shingles: dict[int, np.ndarray] = {}

    def of(number: int) -> np.ndarray:
        if number not in shingles:
            shingles[number] = sketcher.shingles(data[number])
        return shingles[number]

    def first(number: int) -> int:
        while above[number] != number:
            number = above[number]
        return number

    for column in keys.T:
        order = np.argsort(column, kind="stable")
        starts = np.flatnonzero(np.r_[True, column[order][1:] != column[order][:-1]])
        for group in np.split(order, starts[1:]):
            for other in group[1:].tolist():  # each with the first of its bucket, so that many copies cost no squares
                a, b = first(int(group[0])), first(other)
                if a != b and alike(of(int(group[0])), of(other)):
                    above[max(a, b)] = min(a, b)
    return [first(number) for number in range(len(data))]


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two sets of shingles are those of copies."""
    if min(len(one), len(other)) < SHORTEST:
        return False
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared) >= THRESHOLD
