"""Paragraphs and long lines that many of the kept documents have: all but the first of each are taken out.

They are counted shard by shard, the counts are brought together, and every shard is trimmed. Program code is left alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.account import Fates
from danlu.data.curate.execute import Workers, each, in_order
from danlu.data.curate.lines import lines_of
from danlu.data.curate.spool import ENDS, FILES, LEFT, LENGTHS, LINES, STARTS, TRIMMED, Spool, line_of
from danlu.data.dedup.repeats import FIRSTS, PIECES, REPEATED, find_repeated, write_pieces
from danlu.data.dedup.sketch import back_to_back
from danlu.data.json_values import pick
from danlu.data.read import Document

BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """What counts as a repeated paragraph."""

    least_words: int
    most_copies: int


class _Batch(NamedTuple):
    rows: list[int]
    lines: list[bytes]
    texts: list[str]


def trim(
    fields: Sequence[str],
    spools: Sequence[Spool],
    fate: Fates,
    settings: Paragraphs,
    memory: int,
    workers: Workers,
    report: Callable[[str], None],
) -> list[Spool]:
    """The spools without repeated paragraphs.

    fields: where the text stands in the lines of each spool. Copies in what is kept for what it is are counted; they are
    taken out of that, and of what may come back as noise. memory: bytes that sorting may take.
    """

    def jobs(function: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
        for spool, field, one in zip(spools, fields, fate, strict=True):
            yield function, spool, field, one.clean, one.candidate, settings

    in_order(each(jobs(count_pass), workers))
    repeated = find_repeated([spool.folder for spool in spools], settings.most_copies, memory)
    trimmed = in_order(each(jobs(trim_pass), workers))
    report(f"paragraphs: {repeated:,} are in more than {settings.most_copies:,} documents, {sum(trimmed):,} documents have fewer")
    return [spool._replace(trimmed=True) for spool in spools]


def count_pass(spool: Spool, field: str, clean: Array, candidate: Array, settings: Paragraphs) -> None:
    """Write which pieces the documents of a shard have, and how many of the clean ones have each.

    clean, candidate: (documents,) bool. Nothing is done where it has been done.
    """
    from danlu.data.dedup.pieces import pieces

    if (spool.folder / PIECES).exists():
        return
    clean_ones, others = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in _batches(spool, field, (clean | candidate) & ~spool.code()):
        found = pieces(*back_to_back([text.encode() for text in batch.texts]), settings.least_words)
        counts = clean[batch.rows][found.documents]
        clean_ones.append(_once(found.documents[counts], found.hashes[counts]))
        others.append(np.unique(found.hashes[~counts]))
    hashes, documents = np.unique(np.concatenate(clean_ones), return_counts=True)
    more = np.setdiff1d(np.concatenate(others), hashes)
    order = np.argsort(named := np.concatenate([hashes, more]))
    write_pieces(spool.folder, named[order], np.concatenate([documents, np.zeros(len(more), np.int64)])[order])


def _once(documents: Array, hashes: Array) -> Array:
    """The hashes of each document without its own repetitions."""
    order = np.lexsort((hashes, documents))
    documents, hashes = documents[order], hashes[order]
    new = np.ones(len(hashes), bool)
    new[1:] = (documents[1:] != documents[:-1]) | (hashes[1:] != hashes[:-1])
    return hashes[new]


def trim_pass(spool: Spool, field: str, clean: Array, candidate: Array, settings: Paragraphs) -> int:
    """Write the documents of a shard without repeated pieces, and return how many changed."""
    from danlu.data.dedup.pieces import pieces, word_count

    place = spool.folder / TRIMMED
    partial = spool.folder / f"{TRIMMED}.partial"
    for left_over in (place, partial):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir()
    repeated = np.fromfile(spool.folder / REPEATED, np.uint64)
    firsts = set(np.fromfile(spool.folder / FIRSTS, np.uint64).tolist())
    numbers, starts, ends = spool.where()
    lengths, left = spool.lengths(), np.full(spool.documents, -1, np.int32)
    own, end, changed = len(spool.files()), 0, 0
    with (partial / LINES).open("wb", buffering=1 << 20) as out:
        for batch in _batches(spool, field, (clean | candidate) & ~spool.code() if len(repeated) else np.zeros_like(clean)):
            found = pieces(*back_to_back([text.encode() for text in batch.texts]), settings.least_words)
            gone: dict[int, set[int]] = {}
            for at in np.flatnonzero(np.isin(found.hashes, repeated)).tolist():
                document, value = int(found.documents[at]), int(found.hashes[at])
                if value in firsts and clean[batch.rows[document]]:
                    firsts.remove(value)
                else:
                    gone.setdefault(document, set()).update(range(int(found.first[at]), int(found.last[at]) + 1))
            changed += len(gone)
            for document, lines in gone.items():
                row, before = batch.rows[document], batch.texts[document]
                text = without(before, lines)
                data = text.encode()
                if (words := word_count(data)) < settings.least_words:
                    left[row] = words
                    continue
                line = line_of(Document(text, 0, "", batch.lines[document].rstrip(b"\n")), before, field)
                out.write(line)
                numbers[row], starts[row], ends[row], lengths[row] = own, end, end + len(line), len(data)
                end += len(line)
    for name, column in zip((FILES, STARTS, ENDS, LENGTHS, LEFT), (numbers, starts, ends, lengths, left), strict=True):
        column.tofile(partial / name)
    os.replace(partial, place)
    return changed


def without(text: str, gone: Iterable[int]) -> str:
    """The text without some of its lines, and without the empty lines that would stand doubled there."""
    numbers = set(gone)
    kept: list[str] = []
    after = False  # a line that is gone, with nothing but empty ones since
    for number, line in enumerate(text.split("\n")):
        if number in numbers:
            after = True
            continue
        empty = not line.strip()
        if not (empty and after and (not kept or not kept[-1].strip())):
            kept.append(line)
        after = after and empty
    while after and kept and not kept[-1].strip():
        kept.pop()
    return "\n".join(kept)


def _batches(spool: Spool, field: str, wanted: Array) -> Iterator[_Batch]:
    """The documents that are wanted, (documents,) bool, some at a time."""
    rows = np.flatnonzero(wanted)
    part = np.cumsum(spool.lengths()[rows]) // BATCH_BYTES
    for start, stop in pairwise([*np.flatnonzero(np.diff(part, prepend=-1)).tolist(), len(rows)]):
        some = rows[start:stop]
        lines = list(lines_of(spool, some))
        yield _Batch(some.tolist(), lines, [_text(line, field) for line in lines])


def _text(line: bytes, field: str) -> Any:
    return pick(json.loads(line), field)
