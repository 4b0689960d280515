"""Which pieces of text too many documents have, and in which shard each of them comes first: sorted on the disk's account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from danlu.data.arrays import Array

PIECES, REPEATED, FIRSTS = "pieces.npy", "repeated.bin", "firsts.bin"
"""Of a shard: its pieces with their counts; those of them that are repeated; those of these that come first in it."""
LEAST_MEMORY = 16 << 20
"""Bytes below which cutting a sort into parts saves nothing worth having."""
_ROW = 64
"""Bytes that a piece takes while it is sorted."""


def write_pieces(folder: Path, hashes: Array, documents: Array) -> None:
    """Write a shard's pieces, sorted by hash (uint64), with the documents of the shard that have each."""
    partial = folder / f"{PIECES}.partial"
    with partial.open("wb") as out:
        np.save(out, np.stack([hashes, documents.astype(np.uint64)]))
    partial.replace(folder / PIECES)


def find_repeated(folders: Sequence[Path], most: int, memory: int) -> int:
    """Write REPEATED and FIRSTS of every shard: what more than `most` documents of all shards have. Return how many those are.

    What a shard only names, with no documents that count, never comes first in it. memory: bytes that sorting may take.
    """
    for folder in folders:
        for name in (REPEATED, FIRSTS):
            (folder / name).write_bytes(b"")
    total = 0
    for hashes, documents, shards in _parts(folders, memory):
        order = np.argsort(hashes, kind="stable")
        hashes, documents, shards = hashes[order], documents[order], shards[order]
        begins = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
        many = np.add.reduceat(documents, begins) > most
        total += int(many.sum())
        rows = np.flatnonzero(np.repeat(many, np.diff(begins, append=len(hashes))))
        counted = rows[documents[rows] > 0]
        _, at = np.unique(hashes[counted], return_index=True)
        _append(folders, REPEATED, hashes[rows], shards[rows])
        _append(folders, FIRSTS, hashes[counted[at]], shards[counted[at]])
    return total


def _parts(folders: Sequence[Path], memory: int) -> Iterator[tuple[Array, Array, Array]]:
    """Hashes, documents and shard of all pieces, those of one range of hashes after the other."""
    tables = [np.load(folder / PIECES, mmap_mode="r") for folder in folders]
    rows = sum(table.shape[1] for table in tables)
    parts = 1
    while parts * max(memory, LEAST_MEMORY) < _ROW * rows:
        parts *= 2
    # Where a part begins; the last one has no end that 64 bits could hold.
    edges = np.array([(part << 64) // parts for part in range(1, parts)], np.uint64)
    cuts = [[0, *np.searchsorted(table[0], edges).tolist(), table.shape[1]] for table in tables]
    for part in range(parts):
        spans = [slice(cut[part], cut[part + 1]) for cut in cuts]
        found = np.concatenate([table[:, span] for table, span in zip(tables, spans, strict=True)], 1)
        if found.shape[1]:
            shards = np.repeat(np.arange(len(spans), dtype=np.int32), [span.stop - span.start for span in spans])
            yield found[0], found[1].astype(np.int64), shards


def _append(folders: Sequence[Path], name: str, hashes: Array, shards: Array) -> None:
    order = np.argsort(shards, kind="stable")
    hashes, shards = hashes[order], shards[order]
    for shard in np.unique(shards).tolist():
        start, stop = np.searchsorted(shards, [shard, shard + 1])
        with (folders[shard] / name).open("ab") as out:
            out.write(np.ascontiguousarray(hashes[start:stop]).data)
