"""Paragraphs and lines by what they say, compiled: what is counted when repeated parts of documents are looked for.

A paragraph is what stands between lines without a word. One of several lines counts as a whole and line by line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled
from danlu.data.dedup.kernels import ROLL, U64, WORD, mixed, words


class Pieces(NamedTuple):
    """The pieces of some documents, in order; the lines of a paragraph stand before the paragraph."""

    hashes: Array
    """64 bits of the words, in order, uint64; with numbers in the millions two pieces never meet by chance."""
    documents: Array
    """The document of each, int64."""
    first: Array
    """The line of the document at which each begins, int64."""
    last: Array
    """The line with which it ends, int64."""


def pieces(data: Array, ends: Array, least: int) -> Pieces:
    """The pieces with at least `least` words of documents that lie back to back in `data`, document d up to ends[d]."""
    from danlu.data.dedup.fold import table

    room = 2 * (int(np.count_nonzero(data == ord("\n"))) + len(ends))
    hashes, places = np.empty(room, np.uint64), np.empty((3, room), np.int64)
    count = _pieces(data, ends, least, table(), hashes, places)
    return Pieces(hashes[:count], *places[:, :count])


def word_count(text: bytes) -> int:
    """Words of a text, each character of a script without blanks being one."""
    from danlu.data.dedup.fold import table

    out = np.empty(len(text) // 2 + 2, np.uint64)
    return int(words(np.frombuffer(text, np.uint8), 0, len(text), table(), out))


@compiled
def _pieces(data: Array, ends: Array, least: int, fold: Array, hashes: Array, places: Array) -> int:
    longest = start = 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    found = np.empty(longest // 2 + 2, np.uint64)
    count = start = np.int64(0)
    for document in range(len(ends)):
        line, at = 0, start
        paragraph, long, lines = U64(0), 0, 0  # hash and words so far, and lines
        while at <= ends[document]:
            stop = at
            while stop < ends[document] and data[U64(stop)] != 10:
                stop += 1
            here = words(data, at, stop, fold, found)
            if here:
                value = U64(0)
                for i in range(here):
                    spread = mixed(found[i])
                    value = value * ROLL + spread
                    paragraph = paragraph * ROLL + spread
                long, lines = long + here, lines + 1
                if here >= least:
                    hashes[count] = mixed(value + U64(here) * WORD)
                    places[0, count], places[1, count], places[2, count] = document, line, line
                    count += 1
            if not here or stop == ends[document]:
                if lines > 1 and long >= least:
                    last = line if here else line - 1
                    hashes[count] = mixed(paragraph + U64(long) * WORD)
                    places[0, count], places[1, count], places[2, count] = document, last - lines + 1, last
                    count += 1
                paragraph, long, lines = U64(0), 0, 0
            line += 1
            at = stop + 1
        start = ends[document]
    return count
