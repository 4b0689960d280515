"""Whether samples come again, and in which order: a hash of each sample and a table of those seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from danlu.engines.base import Batch
from danlu.train.invariants.batch import HASH_BITS, IGNORED, hashed, rows

REMEMBERED = 1 << 20
"""Samples; about 100 MB. Of more, the oldest are forgotten."""


class Repeats:
    """The samples of a run so far, by content."""

    def __init__(self, samples: int, global_batch: int, held_out: Iterable[Batch] = ()) -> None:
        """``samples`` are those of an epoch, ``held_out`` the batches that validation measures."""
        self.samples, self.global_batch = samples, global_batch
        self.seen: dict[int, int] = {}
        supervised = (rows(batch["inputs"])[(rows(batch["targets"]) != IGNORED).any(axis=1)] for batch in held_out)
        self.held_out = {key for some in supervised for key in hashed(some)}

    def measure(self, step: int, inputs: np.ndarray) -> dict[str, float]:
        """Take the rows (rows, sequence_length) of a step, counted from 0.

        ``batch/repeated``: rows seen before in the same epoch. ``batch/same_order``: of those seen in an epoch before, the share
        that came at the same distance. ``batch/held_out``: rows that validation measures, too. ``batch/hash``: of all of it,
        an integer.
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
        if self.held_out:
            found["batch/held_out"] = sum(key in self.held_out for key in hashes) / len(hashes)
        if total := distances.total():
            found["batch/same_order"] = distances.most_common(1)[0][1] / total
        return found
