"""Rows of CSV and TSV, one at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from danlu.data.json_values import MISSING
from danlu.data.text import NotText


def rows(stream: Any, field: str, delimiter: str, longest: int) -> Iterator[tuple[int, object]]:
    """Number and text of each row behind the header; in place of the text MISSING, or a NotText that says why there is none.

    Quotes as in RFC 4180; a quoted field may hold line ends. Blank lines are passed over.

    Raises:
        NotText: a field does not end within `longest` characters, as behind a stray quote; the rows before it are yielded.
    """
    before = csv.field_size_limit(longest)
    try:
        # Bytes that are no UTF-8 become surrogates, so that one bad row does not end the file.
        reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""), delimiter=delimiter)
        header = next(reader, None)
        if header is None:
            return
        at = header.index(field) if field in header else None
        if at is None:
            raise NotText(f"no column {field!r}, only {', '.join(name[:40] for name in header[:20])}")
        for number, row in enumerate(reader, 2):
            if row:
                yield number, _field(row, at, len(header))
    except csv.Error as error:
        raise NotText(f"{error} at line {reader.line_num:,}; perhaps a quote is not closed") from None
    finally:
        csv.field_size_limit(before)


def _field(row: list[str], at: int, columns: int) -> object:
    if len(row) != columns:
        return NotText(f"{len(row)} fields where the header has {columns}")
    text = row[at]
    if not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text):
        return NotText("not UTF-8")
    return text if text is not None else MISSING
