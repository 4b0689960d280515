"""The main text of web pages, alone or in WARC archives, without menus, scripts and footers."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from danlu.data.text import NotText
from danlu.errors import UserError

PAGES = ("text/html", "application/xhtml+xml")
KINDS = ("page", "warc")
"""What files are called that are read here."""
MOST_NUL = 1000
"""Characters of which one may be NUL: text has none, and compressed data one in 256."""
DEEPEST = 2000
"""Divisions inside each other; the search for the main text takes time by the square of it, some 0.1 s for these."""
_DIVISION = re.compile(r"<(/?)(?:div|article)\b", re.IGNORECASE)
INSTALL = 'reading web pages takes one more package: pip install "danlu[web]"'


def installed() -> bool:
    """Whether web pages can be read."""
    return importlib.util.find_spec("resiliparse") is not None


def page_text(data: bytes, encoding: str | None = None) -> str:
    """The main text of a page of HTML; empty when it has none. `encoding` is what came with it, else the page itself is asked.

    Raises:
        NotText: the page cannot be parsed.
    """
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    except ImportError:
        raise UserError(INSTALL) from None
    try:
        html = bytes_to_str(data, encoding or detect_encoding(data) or "utf-8")
        if html.count("\0") * MOST_NUL > len(html):
            raise NotText("binary data, and no page")
        if _depth(html) > DEEPEST:
            raise NotText(f"divisions nested more than {DEEPEST:,} deep")
        return str(extract_plain_text(html, main_content=True, alt_texts=False))
    except NotText:
        raise
    except (ValueError, LookupError, RuntimeError, TypeError) as error:
        raise NotText(f"no HTML that can be read: {error}") from None


def _depth(html: str) -> int:
    """How many divisions stand inside each other at most, unclosed ones too."""
    return max(accumulate(-1 if closing else 1 for closing in _DIVISION.findall(html)), default=0)


def archived(stream: Any, longest: int) -> Iterator[tuple[str, str | NotText]]:
    """Address and main text of each page of a WARC file (or the text of each conversion, as in WET), else why there is none.

    Requests, redirects, images and the like are passed over. Memory is one record of at most `longest` bytes.

    Raises:
        OSError: the archive breaks off, or is none; the pages before are yielded.
    """
    try:
        from fastwarc.warc import ArchiveIterator, WarcRecordType
    except ImportError:
        raise UserError(INSTALL) from None
    kinds = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    seen = False
    forward: Any = _Forward(stream)
    for record in ArchiveIterator(forward, record_types=WarcRecordType.any_type, auto_decode="all"):
        seen = True
        if not record.record_type & kinds:
            continue
        place = str(record.headers.get("WARC-Target-URI") or record.record_id)
        text = _text(record, longest, plain=record.record_type == WarcRecordType.conversion)
        if text is not None:
            yield place, text
    if not seen:
        raise OSError("no WARC record in it")


class _Forward:
    """A stream that is only read from front to back."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._at = stream, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read1(size)  # not all of `size`: what lies before a break is handed on
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at


def _text(record: Any, longest: int, plain: bool) -> str | NotText | None:
    http = record.http_headers
    if http is not None and (http.status_code or 200) != 200:
        return None
    named = record.http_content_type if http is not None else record.headers.get("Content-Type")
    kind = (named or ("text/plain" if plain else "text/html")).split(";")[0].strip().lower()
    if kind not in PAGES and not (kind == "text/plain" and (plain or http is not None)):
        return None
    data: bytes = record.reader.read(longest + 1)
    encoded = http is not None and ("Content-Encoding" in http or "Transfer-Encoding" in http)
    if len(data) < record.content_length and len(data) <= longest and not encoded:
        raise OSError(f"the record of {record.headers.get('WARC-Target-URI')} breaks off")
    if len(data) > longest:
        return NotText(f"one record of more than {longest >> 20} MiB")
    try:
        if kind == "text/plain":
            return data.decode("utf-8")
        return page_text(data, record.http_charset if http is not None else None)
    except NotText as error:
        return error
    except UnicodeDecodeError as error:
        return NotText(f"not UTF-8 at byte {error.start:,} of the record")
