"""The lines of a shard's documents, wherever they stand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.spool import Spool
from danlu.errors import UserError

AT_ONCE = 1 << 20
"""Bytes that are copied at a time."""


class Lines:
    """Reads lines by the number of their document; a context that closes the files."""

    def __init__(self, spool: Spool) -> None:
        self._numbers, self._starts, self._ends = spool.where()
        self._paths = spool.files()
        self._files: dict[int, int] = {}
        self._open = ExitStack()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
        self._files.clear()

    def line(self, row: int) -> bytes:
        """The line of a document, with its line end."""
        return self._bytes(int(self._numbers[row]), int(self._starts[row]), int(self._ends[row]))

    def some(self, rows: Array) -> Iterator[bytes]:
        """The lines of some documents, each with its line end."""
        where = self._numbers[rows].tolist(), self._starts[rows].tolist(), self._ends[rows].tolist()
        return map(self._bytes, *where)

    def copy(self, stays: Array, target: Path) -> None:
        """Write the lines of the documents that stay, (documents,) bool, those that stand side by side together."""
        rows = np.flatnonzero(stays)
        numbers, starts, ends = self._numbers[rows], self._starts[rows], self._ends[rows]
        apart = (starts[1:] != ends[:-1]) | (numbers[1:] != numbers[:-1])
        first = np.flatnonzero(np.concatenate([[True], apart])) if len(rows) else rows
        last = np.concatenate([first[1:] - 1, [len(rows) - 1]]) if len(rows) else rows
        with target.open("wb", buffering=AT_ONCE) as out:
            for number, start, stop in zip(numbers[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True):
                for at in range(start, stop, AT_ONCE):
                    out.write(self._bytes(number, at, min(stop, at + AT_ONCE)))

    def _bytes(self, number: int, start: int, stop: int) -> bytes:
        if (file := self._files.get(number)) is None:
            file = self._files[number] = self._open.enter_context(self._paths[number].open("rb")).fileno()
        size = stop - start
        found = os.pread(file, size, start)
        if len(found) < size:
            raise UserError(f"{self._paths[number]}: became shorter while it was curated; start again")
        return found


def lines_of(spool: Spool, rows: Array) -> Iterator[bytes]:
    """The lines of some documents."""
    with Lines(spool) as lines:
        yield from lines.some(rows)
