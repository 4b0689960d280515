"""Whether samples come again, and in which order: a hash of each sample and a table of those seen."""

from __future__ import annotations

from collections import Counter

import numpy as np

from danlu.train.invariants.batch import HASH_BITS, hashed

REMEMBERED = 1 << 20
"""Samples; about 100 MB. Of more, the oldest are forgotten."""


class Repeats:
    """The samples of a run so far, by content."""

    def __init__(self, samples: int, global_batch: int) -> None:
        """``samples`` are those of an epoch."""
        self.samples, self.global_batch = samples, global_batch
        self.seen: dict[int, int] = {}

    def measure(self, step: int, inputs: np.ndarray) -> dict[str, float]:
        """Take the rows (rows, sequence_length) of a step, counted from 0.

        ``batch/repeated``: rows seen before in the same epoch. ``batch/same_order``: of those seen in an epoch before, the share
        that came at the same distance. ``batch/hash``: of the whole batch, an integer.
        """
        hashes = hashed(inputs)
        first = step * self.global_batch
        repeated, distances = 0, Counter[int]()
        for number, key in enumerate(hashes, first):
            before = self.seen.pop(key, None)  # and in again, so that the oldest are the first
            self.seen[key] = number
            if before is None:
                continue
            if before // self.samples == number // self.samples:
                repeated += 1
            else:
                distances[number - before] += 1
        while len(self.seen) > REMEMBERED:
            del self.seen[next(iter(self.seen))]
        found = {"batch/hash": float(hash(tuple(hashes)) % (1 << HASH_BITS)), "batch/repeated": repeated / len(hashes)}
        if total := distances.total():
            found["batch/same_order"] = distances.most_common(1)[0][1] / total
        return found
