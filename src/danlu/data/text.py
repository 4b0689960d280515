"""Bytes to text: UTF-8 and nothing else, with a clear word about what it was instead."""

from __future__ import annotations

import codecs

from danlu.encoding import every_other_nul, hint

BYTE_ORDER_MARK = codecs.BOM_UTF8


class NotText(ValueError):
    """The bytes are no UTF-8 text; the message says where and, if it can be told, what they look like."""


def decode(data: bytes, offset: int = 0) -> str:
    """Decode UTF-8 without its byte order mark; `offset` is where `data` begins in its file.

    Raises:
        NotText: with the byte offset in the file, and a hint when it looks like UTF-16 or GBK.
    """
    skip = len(BYTE_ORDER_MARK) if offset == 0 and data.startswith(BYTE_ORDER_MARK) else 0
    if every_other_nul(data):  # ASCII in UTF-16 is valid UTF-8
        raise NotText(f"every other byte is NUL from byte {offset:,} on{hint(data)}")
    try:
        return data[skip:].decode("utf-8") if skip else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotText(not_utf8(data[skip:], error.start, offset + skip)) from None


def not_utf8(data: bytes, start: int, offset: int) -> str:
    """The message for a bad byte at `start` of `data`, which begins at `offset` of its file."""
    return f"not UTF-8 at byte {offset + start:,} (0x{data[start]:02x}){hint(data)}"
