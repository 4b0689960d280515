"""The sketches of documents, and the files that hold them: what pairs are found by, in a few hundred bytes a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.plan import Plan

BLOCK = 1 << 16
"""Documents whose keys are written together, column by column, so that one band is read without the others."""
AT_ONCE = 1 << 10
"""Rows that are looked up before the file is let go."""
KEYS, LOW = "keys.bin", "low.bin"
DIGESTS = 2
"""Columns before those of the bands: 128 bits by which documents are the same."""


class Sketcher:
    """Turns texts into keys and low bytes; holds the tables that this takes."""

    def __init__(self, plan: Plan) -> None:
        from danlu.data.dedup.fold import table  # compiled code is loaded where it is needed

        self.plan = plan
        self._fold = table()
        self._multiply, self._add = plan.coefficients()

    def sketch(self, data: Array, ends: Array) -> tuple[Array, Array]:
        """Keys (documents, DIGESTS + 2 bands) uint64, and the low bytes of all minima (documents, permutations) uint8.

        data: (bytes,) uint8, valid UTF-8 of all documents back to back; ends: (documents,) int64, where each ends in it.
        """
        from danlu.data.dedup import kernels

        keys = np.empty((len(ends), columns(self.plan)), np.uint64)
        if self.plan.equal:
            kernels.digests(data, ends, self._fold, keys)
            return keys, np.empty((len(ends), 0), np.uint8)
        low = np.empty((len(ends), self.plan.permutations), np.uint8)
        kernels.sketch(data, ends, self.plan.shingle, self._fold, self._multiply, self._add, self.plan.rows, keys, DIGESTS, low)
        return keys, low

    def shingles(self, text: bytes) -> Array:
        """The set of a text's shingles, sorted, uint32."""
        from danlu.data.dedup import kernels

        room = len(text) // 2 + 2
        out, hashes = np.empty(room, np.uint32), np.empty((2, room), np.uint64)
        data = np.frombuffer(text, np.uint8)
        return np.unique(out[: kernels.shingles(data, 0, len(text), self.plan.shingle, self._fold, hashes, out)])


def back_to_back(texts: Sequence[bytes]) -> tuple[Array, Array]:
    """Texts as `Sketcher.sketch` takes them."""
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([len(text) for text in texts], dtype=np.int64)


def columns(plan: Plan) -> int:
    """Keys of a document: two of its bytes, then those of its bands, or two of its words where only equal ones are copies."""
    return DIGESTS + (DIGESTS if plan.equal else 2 * plan.bands)


class SketchWriter:
    """Writes the sketches of one shard, in order; memory is one block."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._sketcher = Sketcher(plan)
        self._keys, self._low = (folder / KEYS).open("wb"), (folder / LOW).open("wb")
        self._block = np.empty((columns(plan), BLOCK), np.uint64)
        self._filled = 0

    def add(self, data: Array, ends: Array) -> None:
        """Sketch texts behind those before; they are given as to `Sketcher.sketch`."""
        keys, low = self._sketcher.sketch(data, ends)
        self._low.write(low.data)
        done = 0
        while done < len(keys):
            count = min(len(keys) - done, BLOCK - self._filled)
            self._block[:, self._filled : self._filled + count] = keys[done : done + count].T
            self._filled += count
            done += count
            if self._filled == BLOCK:
                self._flush()

    def _flush(self) -> None:
        self._keys.write(np.ascontiguousarray(self._block[:, : self._filled]).data)
        self._filled = 0

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._keys.close()
        self._low.close()


class ShardSketch:
    """The sketches of a shard that is complete."""

    def __init__(self, folder: Path, documents: int, plan: Plan) -> None:
        self._folder, self._plan, self.documents = folder, plan, documents

    def column(self, number: int) -> Array:
        """One key of every document, (documents,) uint64."""
        out = np.empty(self.documents, np.uint64)
        width = columns(self._plan)
        with (self._folder / KEYS).open("rb") as file:
            for start in range(0, self.documents, BLOCK):
                count = min(BLOCK, self.documents - start)
                file.seek(8 * (start * width + number * count))
                out[start : start + count] = np.fromfile(file, np.uint64, count)
        return out

    def digests(self, rows: Array, first: int) -> Array:
        """The 128 bits of some documents in two columns from `first` on, (rows, DIGESTS) uint64."""
        if not self.documents:
            return np.empty((0, DIGESTS), np.uint64)
        width = columns(self._plan)
        block = rows // BLOCK * BLOCK
        count = np.minimum(BLOCK, self.documents - block)
        numbers = range(first, first + DIGESTS)
        return np.stack([_some(self._folder / KEYS, np.uint64, (), block * width + n * count + rows - block) for n in numbers], 1)

    def low(self, rows: Array) -> Array:
        """Low bytes of the minima of some documents, (rows, permutations) uint8."""
        if not self.documents or not self._plan.permutations:
            return np.empty((len(rows), self._plan.permutations), np.uint8)
        return _some(self._folder / LOW, np.uint8, (self._plan.permutations,), rows)


def _some(path: Path, kind: type[np.generic], shape: tuple[int, ...], rows: Array) -> Array:
    """Some of the entries of a file, sorted, each of the shape.

    A page that was touched counts as memory of the process, with some around it, until the file is let go: so it is mapped anew
    after every few rows.
    """
    out = np.empty((len(rows), *shape), kind)
    for start in range(0, len(rows), AT_ONCE):
        mapped: Array = np.memmap(path, kind, "r").reshape(-1, *shape)
        out[start : start + AT_ONCE] = mapped[rows[start : start + AT_ONCE]]
        del mapped
    return out
