"""Texts out of spools by number, and how alike two are exactly."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.lines import Lines
from danlu.data.curate.spool import Spool
from danlu.data.dedup.plan import Plan
from danlu.data.dedup.sketch import Sketcher
from danlu.data.json_values import pick

REMEMBERED = 4096
"""Sets of shingles that are held; pairs come in order, so that one of the two was mostly seen just before."""


class Texts:
    """Reads single documents; `fields` and `spools` belong together, `firsts` numbers them."""

    def __init__(self, spools: Sequence[Spool], fields: Sequence[str], firsts: Sequence[int], plan: Plan) -> None:
        self._fields, self._firsts = fields, firsts
        self._lines = [Lines(spool) for spool in spools]
        self._sketcher = Sketcher(plan)
        self._set = lru_cache(REMEMBERED)(self._shingles)

    def text(self, document: int) -> str:
        """The text of a document, numbered over all shards."""
        shard = bisect_right(self._firsts, document) - 1
        row = document - self._firsts[shard]
        text = pick(json.loads(self._lines[shard].line(row)), self._fields[shard])
        assert isinstance(text, str)
        return text

    def _shingles(self, document: int) -> Array:
        return self._sketcher.shingles(self.text(document).encode())

    def jaccard(self, left: int, right: int) -> float:
        """Shared shingles of two documents over all that either has."""
        a, b = self._set(left), self._set(right)
        shared = len(np.intersect1d(a, b, assume_unique=True))
        return shared / (len(a) + len(b) - shared)
