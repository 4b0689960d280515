"""Figures as people read them: bytes, durations, counts, shares, and how wide text is on a terminal."""

from __future__ import annotations

import math
import unicodedata

MISSING = "–"
"""Stands for a figure that is not known; never a zero."""


def bytes_text(size: float) -> str:
    """Bytes with binary units: 999 B, 1.5 KiB, 12.3 GiB."""
    if not math.isfinite(size):
        return str(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # 1023.95 would print as 1024.0, so it already belongs to the next unit.
        if abs(size) < 1023.95 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable: the last unit takes everything")


def duration(seconds: float) -> str:
    """A time span in its two largest units: 850 ms, 4.2 s, 3m 20s, 1h 02m, 2d 03h."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"


def count(number: float) -> str:
    """A count to three or four digits: 950, 1.2k, 42.0M, 1.1B, 15.0T."""
    if not math.isfinite(number):
        return str(number)
    for unit in ("", "k", "M", "B", "T"):
        if abs(number) < (999.5 if unit == "" else 999.95) or unit == "T":
            return f"{number:.0f}" if unit == "" else f"{number:.1f}{unit}"
        number /= 1000
    raise AssertionError("unreachable: the last unit takes everything")


def share(ratio: float) -> str:
    """A ratio as a percentage: 0.3%, 41.0%."""
    return f"{ratio:.1%}" if math.isfinite(ratio) else str(ratio)


def figure(value: float) -> str:
    """A loss, a norm, a ratio: four digits, exponents where they help: 2.345, 10.4, 3.00e-04."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    decimals = max(0, 3 - max(0, math.floor(math.log10(abs(value))))) if value else 3
    return f"{value:.{decimals}f}"


def cells(text: str) -> int:
    """Columns that text takes on a terminal: wide East Asian characters take two, combining ones none."""
    return sum(map(_cell, text))


def padded(text: str, width: int) -> str:
    """Text followed by blanks up to `width` columns."""
    return text + " " * max(0, width - cells(text))


def shortened(text: str, width: int) -> str:
    """Text cut to at most `width` columns."""
    used = 0
    for index, character in enumerate(text):
        used += _cell(character)
        if used > width:
            return text[:index]
    return text


def _cell(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
