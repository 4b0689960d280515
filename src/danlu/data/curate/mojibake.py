"""Text that was decoded by the wrong table, line by line: found by what hardly any true text has, repaired where plain."""

from __future__ import annotations

import re

_LATIN = re.compile(
    "[\u00c2-\u00f4\u0152\u0160\u017d\u0178][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014"
    "\u2018-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
)
"""The lead byte of UTF-8 and a byte that continues it, as Latin-1 or Windows-1252 shows them."""
_GBK_AS_LATIN = re.compile("(?:[\u00b0-\u00f7][\u00a1-\u00fe]){2,}")
"""Two or more characters of GB 2312 as Latin-1 shows them."""
_UTF8_AS_GBK = re.compile("[锛銆鐨鈥鎴]")
"""What 。，的“ and 我 of UTF-8 become in GBK; rare by themselves."""
_HAN = re.compile("[\u4e00-\u9fff]")
_COMMON_ROWS = range(0xB0, 0xD8)
"""Lead bytes of the 3,755 common characters of GB 2312."""
LEAST_HAN = 4


def repaired(text: str) -> str:
    """The text with the lines repaired that were decoded by the wrong table; the same object if there are none."""
    if text.isascii() or not (_LATIN.search(text) or _GBK_AS_LATIN.search(text) or _UTF8_AS_GBK.search(text)):
        return text
    lines = text.split("\n")
    mended = [_line(line) for line in lines]
    return text if mended == lines else "\n".join(mended)


def _line(line: str) -> str:
    if line.isascii():
        return line
    if _LATIN.search(line):
        from ftfy import fix_encoding  # reads its tables when it is imported

        fixed = str(fix_encoding(line))
        if fixed != line:
            return fixed
    if _GBK_AS_LATIN.search(line):
        return _from_latin(line) or line
    if _UTF8_AS_GBK.search(line):
        return _from_gbk(line) or line
    return line


def _from_latin(line: str) -> str | None:
    """GBK that was read as Latin-1: nearly all of its characters must be common ones."""
    try:
        data = line.encode("latin-1")
        text = data.decode("gb18030")
    except UnicodeError:
        return None
    han = _HAN.findall(text)
    common = sum(character.encode("gb18030")[0] in _COMMON_ROWS for character in han)
    return text if len(han) >= LEAST_HAN and common > 0.8 * len(han) else None


def _from_gbk(line: str) -> str | None:
    """UTF-8 that was read as GBK: true text of this length is not valid UTF-8 when it is written in GBK."""
    try:
        text = line.encode("gb18030").decode("utf-8")
    except UnicodeError:
        return None
    return text if len(_HAN.findall(text)) >= LEAST_HAN else None
