"""Files that people wrote are UTF-8; what others look like, and how to convert them."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from danlu.errors import UserError

LOOK = 65536
"""Bytes that are looked at."""
_ASCII = bytes(range(0x80))
_PAIRS = re.compile(rb"(?:[\xa1-\xfe][\xa1-\xfe])+")


def decoded(raw: bytes, path: Path) -> str:
    """The text of a file, without a byte order mark. UserError: it is no UTF-8."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 (byte {error.start}){hint(raw) or '; save it as UTF-8'}") from None
    if every_other_nul(raw):
        raise UserError(f"{path}: is not UTF-8{hint(raw)}")
    return text


def every_other_nul(data: bytes) -> bool:
    """Whether it is Latin text in UTF-16, which may be valid UTF-8."""
    look = data[:LOOK]
    even, odd = look[::2].count(0), look[1::2].count(0)
    return len(look) >= 8 and min(even, odd) == 0 and 4 * max(even, odd) > len(look)


def hint(data: bytes) -> str:
    """``; it looks like GBK, convert it with ...``, or nothing where it cannot be told."""
    look = data[:LOOK]
    if look.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or every_other_nul(look):
        return "; it looks like UTF-16, convert it with `iconv -f UTF-16 -t UTF-8`"
    # GBK writes Chinese in pairs of high bytes; Latin-1 has its accented letters one by one.
    high = len(look.translate(None, _ASCII))
    paired = sum(len(match) for match in _PAIRS.findall(look))
    if high >= 4 and paired >= 0.9 * high:
        return "; it looks like GBK, convert it with `iconv -f GB18030 -t UTF-8`"
    return ""
