"""Rows of CSV and TSV, one at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from danlu.data.text import NotText


def rows(stream: Any, field: str, path: str, longest: int) -> Iterator[tuple[int, object]]:
    """Number and text of each row behind the header; in place of the text a NotText that says why there is none.

    Blank lines are passed over. Raises NotText as `records`; the rows before it are yielded.
    """
    # Bytes that are no UTF-8 become surrogates, so that one bad row does not end the file.
    found = records(stream, path, longest, "surrogateescape")
    header = next(found, None)
    if header is None:
        return
    if field not in header:
        raise NotText(f"no column {field!r}, only {', '.join(name[:40] for name in header[:20])}")
    at = header.index(field)
    for number, row in enumerate(found, 2):
        if row:
            yield number, _field(row, at, len(header))


def records(stream: Any, path: str, longest: int, errors: str = "strict") -> Iterator[list[str]]:
    """The fields of every row, the header's too; `path` tells by its name what parts them. `errors`: as of bytes.decode.

    Quotes as in RFC 4180; a quoted field may hold line ends.

    Raises:
        NotText: a line or a field does not end within `longest` characters, as behind a stray quote.
    """
    delimiter = "\t" if ".tsv" in path.lower()[-8:] else ","
    before = csv.field_size_limit(longest)
    reader = csv.reader(_lines(io.TextIOWrapper(stream, "utf-8-sig", errors, newline=""), longest), delimiter=delimiter)
    try:
        yield from reader
    except csv.Error as error:
        raise NotText(f"{error} at line {reader.line_num:,}; perhaps a quote is not closed") from None
    finally:
        csv.field_size_limit(before)


def _lines(text: io.TextIOWrapper, longest: int) -> Iterator[str]:
    """Lines with their ends: by itself the reader would take one into memory however long it is."""
    while line := text.readline(longest + 1):
        if len(line) > longest:
            raise NotText(f"a line of more than {longest:,} characters")
        yield line


def _field(row: list[str], at: int, columns: int) -> object:
    if len(row) != columns:
        return NotText(f"{len(row)} fields where the header has {columns}")
    text = row[at]
    if not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text):
        return NotText("not UTF-8")
    return text
