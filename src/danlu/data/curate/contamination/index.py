"""What must not be trained on, in a form that documents are held against at the speed of reading."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.fold import table
from danlu.data.dedup.plan import Plan, rows_for
from danlu.data.dedup.sketch import DIGESTS, Sketcher, back_to_back

SHORTEST = 8
"""Words of a test text below which it is not looked for: everyday phrases would count. (Chinese characters count as words.)"""
COMMON = 10
"""Test texts that share a run of words, above which it is a phrase of the test itself, such as its instructions.

Brown et al. (2020, appendix C) leave such runs out in the same way."""
MOST = 1 << 25
"""Runs of words that are remembered, in about 1.5 GB; of more, every second, fourth and so on: long overlaps are still found."""
PERMUTATIONS, SHINGLE = 112, 5
_EDGE = re.compile(r"^\W+")


class Match(NamedTuple):
    """Why a document is contaminated."""

    rule: str
    """`words` or `near`."""
    place: str
    """The test text."""
    what: str
    """The words that are shared, or the Jaccard."""


class _Grams:
    """Runs of `size` words, and the test text that each comes from."""

    def __init__(self, size: int, found: list[tuple[int, Array]]) -> None:
        self.size = size
        every = np.concatenate([grams for _, grams in found])
        owners = np.repeat(np.array([owner for owner, _ in found], np.int64), [len(grams) for _, grams in found])
        grams, first, texts = np.unique(every, return_index=True, return_counts=True)
        rare = texts <= COMMON
        self.owners = owners[first[rare]]
        self.keys = np.zeros(1 << max(4, (2 * int(rare.sum())).bit_length()), np.uint64)
        self.rows = np.zeros(len(self.keys), np.int64)
        from danlu.data.curate.contamination import kernels

        kernels.fill(self.keys, self.rows, grams[rare])

    def match(self, hashed: Array) -> tuple[int, int] | None:
        """(number of the first word of the first run that is shared, the test text), if there is one."""
        from danlu.data.curate.contamination import kernels

        asked = np.empty(len(hashed), np.uint64)
        count = kernels.grams(hashed, self.size, asked)
        at, row = kernels.first_match(self.keys, self.rows, asked[:count])
        return None if at < 0 else (at, int(self.owners[row]))


class Index:
    """Test texts, by their runs of words and by their sketches. `texts` are pairs of place and text."""

    def __init__(self, texts: Iterable[tuple[str, str]], words: int, threshold: float | None) -> None:
        from danlu.data.curate.contamination import kernels

        self.places: list[str] = []
        self.too_short = 0
        found: dict[int, list[tuple[int, Array]]] = {}
        kept: list[bytes] = []
        total, every = 0, np.uint64(1)
        for place, text in texts:
            hashed, _ = _words(text)
            if len(hashed) < SHORTEST:
                self.too_short += 1
                continue
            size = min(words, len(hashed))
            grams = np.empty(len(hashed), np.uint64)
            count = kernels.grams(hashed, size, grams)
            mine = np.unique(grams[:count])
            mine = mine[mine % every == 0]
            total += len(mine)
            found.setdefault(size, []).append((len(self.places), mine))
            while total > MOST:
                every *= np.uint64(2)
                found = {size: [(owner, some[some % every == 0]) for owner, some in each] for size, each in found.items()}
                total = sum(len(some) for each in found.values() for _, some in each)
            self.places.append(place)
            if threshold is not None:
                kept.append(text.encode())
        self._grams = [_Grams(size, grams) for size, grams in sorted(found.items())]
        self._near = None if threshold is None or not kept else _Near(kept, threshold)

    def match(self, text: str) -> Match | None:
        """The first reason why a text is contaminated, if there is one."""
        hashed, ends = _words(text)
        for grams in self._grams:
            hit = grams.match(hashed)
            if hit is not None:
                at, owner = hit
                start = int(ends[at - 1]) if at else 0
                return Match("words", self.places[owner], _EDGE.sub("", text[start : int(ends[at + grams.size - 1])]))
        near = self._near.match(text) if self._near is not None and len(hashed) >= SHORTEST else None
        return None if near is None else Match("near", self.places[near[0]], f"{near[1]:.3f}")


class _Near:
    """Sketches of whole texts, as near-duplicate removal makes them, by band; candidates are checked by their true Jaccard."""

    def __init__(self, texts: list[bytes], threshold: float) -> None:
        self.threshold, self.texts = threshold, texts
        self._sketcher = Sketcher(Plan(threshold, PERMUTATIONS, rows_for(threshold, PERMUTATIONS), SHINGLE, "exact"))
        keys = self._sketcher.sketch(*back_to_back(texts))[0][:, DIGESTS:]
        self._by_key: dict[int, list[int]] = {}
        for number, row in enumerate(keys.tolist()):
            for key in row:
                self._by_key.setdefault(key, []).append(number)

    def match(self, text: str) -> tuple[int, float] | None:
        data = text.encode()
        keys = self._sketcher.sketch(*back_to_back([data]))[0][0, DIGESTS:].tolist()
        candidates = sorted({number for key in keys for number in self._by_key.get(key, ())})
        mine = self._sketcher.shingles(data) if candidates else np.empty(0, np.uint32)
        for number in candidates:
            theirs = self._sketcher.shingles(self.texts[number])
            shared = len(np.intersect1d(mine, theirs, assume_unique=True))
            jaccard = shared / (len(mine) + len(theirs) - shared)
            if jaccard >= self.threshold:
                return number, jaccard
        return None


def _words(text: str) -> tuple[Array, Array]:
    """Hashes of a text's words, uint64, and where each ends, int64."""
    from danlu.data.curate.contamination import kernels

    codes = np.frombuffer(text.encode("utf-32-le") or b"\0\0\0\0", np.uint32)
    hashed, ends = np.empty(len(codes), np.uint64), np.empty(len(codes), np.int64)
    count = kernels.words(codes, table(), hashed, ends)
    return hashed[:count], ends[:count]
