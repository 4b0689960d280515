"""A set of documents in a quarter of a byte for each document that there is, which knows how many of it come before any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from danlu.data.arrays import Array

_WORD = 64
"""Documents of which the number in the set is kept."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
"""Bits that are set in a byte."""


@dataclass(frozen=True)
class Places:
    """Bits, and how many are set before each word of them."""

    words: Array
    """(documents // 64 + 1,) uint64, the first document in the lowest bit."""
    sums: Array
    """(documents // 64 + 1,) int64."""

    @classmethod
    def of(cls, parts: Iterable[Array]) -> Places:
        """The documents that are True in some arrays one behind the other, (documents,) bool."""
        packed, left = [], np.empty(0, bool)
        for part in parts:
            part = np.concatenate([left, part])
            whole = len(part) // _WORD * _WORD
            packed.append(np.packbits(part[:whole], bitorder="little"))
            left = part[whole:]
        packed.append(np.packbits(np.pad(left, (0, _WORD - len(left))), bitorder="little"))
        words = np.concatenate(packed).view("<u8").astype(np.uint64, copy=False)
        sums = np.zeros(len(words), np.int64)
        np.cumsum(_ones(words[:-1]), out=sums[1:])
        return cls(words, sums)

    def has(self, documents: Array) -> Array:
        """Whether documents, by number, are in the set, (documents,) bool."""
        found: Array = self.words[documents // _WORD] >> (documents % _WORD).astype(np.uint64) & np.uint64(1) == 1
        return found

    def before(self, documents: Array) -> Array:
        """How many before each are in the set, (documents,) int64; the number of all documents may be asked for, too."""
        below = (np.uint64(1) << (documents % _WORD).astype(np.uint64)) - np.uint64(1)
        found: Array = self.sums[documents // _WORD] + _ones(self.words[documents // _WORD] & below)
        return found


def _ones(words: Array) -> Array:
    """Bits that are set in each word, (words,)."""
    found: Array = _ONES[words.view(np.uint8)].reshape(-1, 8).sum(1, dtype=np.int64)
    return found
