"""What a character is to a shingle: part of a word, a word of its own, or nothing; and in which form it counts.

Copies that differ only in case, accents written apart, full and half width, blanks or punctuation fold to the same words.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

from danlu.data.arrays import Array

SEPARATOR, IGNORED, ALONE = 0, 1, 1 << 31
"""Entries of the table beside folded letters: ends a word; is passed over; (a bit) a word by itself."""
_COMBINING = [
    (0x300, 0x370),
    (0x3099, 0x309B),
    (0x200B, 0x200E),
    (0x2060, 0x2061),
    (0xFE00, 0xFE10),
    (0xFEFF, 0xFF00),
    (0xAD, 0xAE),
]
"""Accents written apart, the soft hyphen and other characters that no reader sees."""
_UNSPACED = [
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x0F00, 0x1000),  # Tibetan
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x2E80, 0x3100),  # radicals, Hiragana, Katakana
    (0x31F0, 0x3200),
    (0x3400, 0xA4D0),  # Han, Yi
    (0xF900, 0xFB00),  # Han, compatibility
]
"""Scripts that put no blanks between words: each character counts as a word."""


@cache
def table() -> Array:
    """(65536,) uint32, by character of the basic plane: SEPARATOR, IGNORED, or the folded form, with ALONE if it is a word."""
    made = np.zeros(1 << 16, np.uint32)
    alone, ignored = np.zeros(1 << 16, bool), np.zeros(1 << 16, bool)
    for first, stop in _UNSPACED:
        alone[first:stop] = True
    for first, stop in _COMBINING:
        ignored[first:stop] = True
    for code in range(1 << 16):
        character = chr(code)
        if unicodedata.category(character)[0] in "LNM":
            made[code] = _folded(character)
    made[alone & (made > 0)] |= ALONE
    made[ignored] = IGNORED
    made.setflags(write=False)
    return made


def _folded(character: str) -> int:
    """The base letter in lower case: É, é and E are e; Ａ is a; が is か, so that both spellings of it agree."""
    if character >= "\u0080":
        base = unicodedata.normalize("NFKD", character)
        if len(base) == 1 or all(unicodedata.combining(mark) for mark in base[1:]):
            character = base[0]
    lower = character.lower()
    return ord(lower[0])
