"""What a character is to the rules: one byte of flags for each character of the basic plane."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.fold import ALONE, IGNORED, table

SPACE, LETTER, DIGIT, UNSPACED, SIGN, ENDING, SKIPPED, UNREADABLE = (1 << bit for bit in range(8))
"""Blank; letter or mark; digit; letter that is a word by itself; punctuation or symbol; sign that ends a sentence;
what no reader sees; stands for what could not be read."""
ENDINGS = ".!?…。！？．｡؟۔।॥։။።፧᠃᠉⸮⁇⁈⁉‼﹒﹖﹗"


@cache
def classes() -> Array:
    """(65536,) uint8 of flags."""
    made = np.zeros(1 << 16, np.uint8)
    fold = table()
    for code in range(1 << 16):
        kind = unicodedata.category(chr(code))
        if chr(code).isspace():
            flags = SPACE
        elif fold[code] == IGNORED:
            flags = SKIPPED
        elif kind[0] == "N":
            flags = DIGIT
        elif kind[0] in "LM":
            flags = LETTER | (UNSPACED if fold[code] & ALONE else 0)
        elif kind in ("Co", "Cn", "Cs") or code == 0xFFFD:
            flags = UNREADABLE
        elif kind == "Cc":
            flags = SKIPPED
        else:
            flags = SIGN
        made[code] = flags
    for character in ENDINGS:
        made[ord(character)] = SIGN | ENDING
    made.setflags(write=False)
    return made
