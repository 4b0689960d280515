"""Bytes to text: UTF-8 and nothing else, with a clear word about what it was instead."""

from __future__ import annotations

import codecs
import re

BYTE_ORDER_MARK = codecs.BOM_UTF8
_LOOK = 65536
"""Bytes that are looked at to guess an encoding."""
_ASCII = bytes(range(0x80))
_PAIRS = re.compile(rb"(?:[\xa1-\xfe][\xa1-\xfe])+")


class NotText(ValueError):
    """The bytes are no UTF-8 text; the message says where and, if it can be told, what they look like."""


def decode(data: bytes, offset: int = 0) -> str:
    """Decode UTF-8 without its byte order mark; `offset` is where `data` begins in its file.

    Raises:
        NotText: with the byte offset in the file, and a hint when it looks like UTF-16 or GBK.
    """
    skip = len(BYTE_ORDER_MARK) if offset == 0 and data.startswith(BYTE_ORDER_MARK) else 0
    if _every_other_nul(data[:_LOOK]):  # ASCII in UTF-16 is valid UTF-8
        raise NotText(f"every other byte is NUL from byte {offset:,} on{_hint(data)}")
    try:
        return data[skip:].decode("utf-8") if skip else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotText(not_utf8(data[skip:], error.start, offset + skip)) from None


def not_utf8(data: bytes, start: int, offset: int) -> str:
    """The message for a bad byte at `start` of `data`, which begins at `offset` of its file."""
    return f"not UTF-8 at byte {offset + start:,} (0x{data[start]:02x}){_hint(data)}"


def _every_other_nul(look: bytes) -> bool:
    even, odd = look[::2].count(0), look[1::2].count(0)
    return len(look) >= 8 and min(even, odd) == 0 and 4 * max(even, odd) > len(look)


def _hint(data: bytes) -> str:
    look = data[:_LOOK]
    if look.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _every_other_nul(look):
        return "; it looks like UTF-16, convert it with `iconv -f UTF-16 -t UTF-8`"
    # GBK writes Chinese in pairs of high bytes; Latin-1 has its accented letters one by one.
    high = len(look.translate(None, _ASCII))
    paired = sum(len(match) for match in _PAIRS.findall(look))
    if high >= 4 and paired >= 0.9 * high:
        return "; it looks like GBK, convert it with `iconv -f GB18030 -t UTF-8`"
    return ""
