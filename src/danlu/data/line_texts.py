"""JSON lines read many at a time: texts in one array, for work that needs neither Python's strings nor other fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.ledger import Ledger
from danlu.data.read import LONGEST, Document, Numbers, line_blocks, line_document
from danlu.data.sources import SourceFile

SHORTEST = len(b'{"":"x"}\n')
"""Bytes of a line that holds a text."""


class LineTexts(NamedTuple):
    """The texts of lines that stand one behind the other in a file."""

    file: SourceFile
    data: Array
    """UTF-8 bytes of all texts back to back, uint8."""
    ends: Array
    """(lines,) int64: where each ends in `data`."""
    lines: memoryview
    """The lines as they are, each with its line end."""
    line_ends: Array
    """(lines,) int64: where each ends in `lines`."""
    start: int
    """The byte of the (unpacked) file at which `lines` begins."""
    places: list[str]
    """File and line, as of a Document."""


def line_texts(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[LineTexts | Document]:
    """Yield what `documents` does of a file of JSON lines, in the same order, most of it as LineTexts."""
    from danlu.data import json_scan  # compiled code is loaded where it is needed

    field = np.frombuffer(file.text.encode(), np.uint8)
    numbers = Numbers(file)
    for block, start in line_blocks(file, stream):
        view = memoryview(block)
        whole = block.rfind(b"\n") + 1
        data = np.frombuffer(block, np.uint8, whole)
        at = 0
        while at < len(block):
            if at < whole:
                most = (whole - at) // SHORTEST
                out, ends, line_ends = np.empty(whole - at, np.uint8), np.empty(most, np.int64), np.empty(most, np.int64)
                count = json_scan.lines(data, at, field, LONGEST, out, ends, line_ends)
                if count:
                    ends, line_ends = ends[:count], line_ends[:count]
                    stop, filled = int(line_ends[-1]), int(ends[-1])
                    ledger.keep(filled, count)
                    places = numbers.places(start, np.concatenate([[at], line_ends[:-1]]))
                    out.setflags(write=False)  # as texts that come from bytes: one kind of array, compiled for once
                    yield LineTexts(file, out[:filled], ends, view[at:stop], line_ends - at, start + at, places)
                    at = stop
            if at < len(block):
                stop = block.find(b"\n", at) + 1 or len(block)
                yield from line_document(block[at:stop], start + at, numbers.place(start + at), file, ledger)
                at = stop
