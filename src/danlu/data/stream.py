"""The tokens of a split as one long sequence over memory-mapped shards."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.shards import KINDS, STARTS
from danlu.errors import UserError

OPEN_SHARDS = 64
"""Shards that are mapped at a time; each takes two file handles, and processes commonly may have 1,024."""
RELEASE_EVERY = 1024
"""Reads after which mapped pages are given back (they stay in the system's file cache)."""
SMALL = 256 << 20
"""Bytes of shards below which pages are never given back."""


class _Shard:
    """The files of a shard, mapped."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any], large: bool, masked: bool) -> None:
        self.maps = [_map(folder / f"{name}.{kind}") for kind in (KINDS if masked else KINDS[:2])]
        if large and hasattr(mmap, "MADV_RANDOM"):
            self.maps[0].madvise(mmap.MADV_RANDOM)  # windows are read in random order: reading ahead is wasted
        self.tokens: Array = np.frombuffer(self.maps[0], dtype)
        self.starts: Array = np.frombuffer(self.maps[1], STARTS)
        self.supervised: Array = np.frombuffer(self.maps[2], np.uint8) if masked else np.empty(0, np.uint8)

    def release(self) -> None:
        """Drop the pages from this process; the next read maps them again."""
        for part in self.maps:
            if hasattr(mmap, "MADV_DONTNEED"):
                part.madvise(mmap.MADV_DONTNEED)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


class TokenStream:
    """One split: documents back to back, each with its begin and end token. Memory does not grow with the corpus.

    It can be pickled for loader processes; each maps the files for itself.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], split: Mapping[str, Any], together: int = 1) -> None:
        """``together``: how many documents belong together and stay in one sample, where samples hold whole ones."""
        self.folder, self.dtype, self.together = folder, dtype, together
        self.tokens: int = split["tokens"]
        self.documents: int = split["documents"]
        self.text_bytes: int = split["text_bytes"]
        """UTF-8 bytes of the documents' text."""
        self.masked: bool = any("supervised_file" in shard for shard in split["shards"])
        """Whether not every token is supervised, as in conversations."""
        self._names: list[str] = [shard["name"] for shard in split["shards"]]
        self._firsts: list[int] = list(accumulate((shard["tokens"] for shard in split["shards"]), initial=0))
        self.mapped_bytes = self.tokens * (dtype.itemsize + self.masked) + self.documents * STARTS.itemsize
        """Of files at most, which are in memory as far as they were read."""
        self._large = self.tokens * dtype.itemsize + self.documents * STARTS.itemsize > SMALL
        self._open: OrderedDict[int, _Shard] = OrderedDict()
        self._reads = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict(), "_reads": 0}

    def _shard(self, number: int) -> _Shard:
        shard = self._open.get(number)
        if shard is None:
            shard = self._open[number] = _Shard(self.folder, self._names[number], self.dtype, self._large, self.masked)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        self._reads += 1
        if self._large and self._reads % RELEASE_EVERY == 0:
            for mapped in self._open.values():
                mapped.release()
        return shard

    def _parts(self, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """(shard, its first token, from, to) for each shard in the range, the last two counted inside the shard."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start} to {stop} of a stream of {self.tokens}")
        parts = []
        number = bisect_right(self._firsts, start) - 1
        while start < stop:
            first, end = self._firsts[number], min(stop, self._firsts[number + 1])
            parts.append((number, first, start - first, end - first))
            start, number = end, number + 1
        return parts

    def window(self, start: int, length: int) -> Array:
        """Tokens [start, start + length), as a copy, (length,) of the shards' type."""
        parts = self._parts(start, start + length)
        if len(parts) == 1:
            number, _, low, high = parts[0]
            return self._shard(number).tokens[low:high].copy()
        return np.concatenate([self._shard(n).tokens[a:b] for n, _, a, b in parts] or [np.empty(0, self.dtype)])

    def supervised(self, start: int, length: int) -> Array:
        """Whether each token of [start, start + length) is supervised, bool; of a masked stream."""
        parts = self._parts(start, start + length)
        return np.concatenate([self._shard(n).supervised[a:b] for n, _, a, b in parts] or [np.empty(0, np.uint8)]).astype(bool)

    def document_starts(self, start: int, stop: int) -> Array:
        """Positions in [start, stop) at which documents begin, ascending, int64."""
        found = []
        for number, first, low, high in self._parts(start, stop):
            starts = self._shard(number).starts
            i, j = np.searchsorted(starts, (low, high))
            found.append(starts[i:j] + first)
        return np.concatenate(found or [np.empty(0, np.int64)]).astype(np.int64, copy=False)
