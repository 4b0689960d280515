"""What the compiled scan for toxic words looks up: what a character is, and hashes of the words of the lists."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, reduce
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.toxicity import han, matcher
from danlu.data.curate.toxicity.word_lists import lists

IGNORED, NAMED, SIGN = 0, 1, 0xA7
"""Entries of the table of characters: not there for a reader; the text has to be read; a sign like any other."""
LETTER, DIGIT, EDGE, SPELLS, BETWEEN, HAN, ALIKE, SPLITS, ALONE = (1 << bit for bit in range(9))
"""What a folded character is: a-z; 0-9; stripped from words; may stand between letters that are spelled out, or between Chinese
characters; one of those; may look like a Latin letter; ends a token; a toxic word by itself."""
START, STEP = 0xCBF29CE484222325, 0x100000001B3
"""Of FNV-1a, here by characters."""
PAIR_BITS, PAIR_FIRST, PAIR_SECOND = 18, 0x9E3779B1, 0x85EBCA77


class Tables(NamedTuple):
    """What the scan looks things up in."""

    fold: Array
    """(65536,) uint32: the folded form of a character, or an entry from above."""
    kind: Array
    """(65536,) uint16, by folded form: the bits from above."""
    leet: Array
    """(2, 8400) uint8: the letter that a folded character stands for, or 0."""
    words: Array
    """Hashes of Latin words, and of the first two or three words of phrases; open addressing, 0 is empty."""
    short: Array
    """The same of Chinese abuse in Latin letters."""
    chinese: Array
    """The same of Chinese words of two characters and more."""
    pairs: Array
    """(2^18,) bool: two characters with which one of them may begin, by their hash."""
    longest: int
    """Characters of the longest of them."""


@cache
def tables() -> Tables:
    """Made once a process, in some tenths of a second."""
    known = lists()
    starts = [phrase[:3] for phrases in known.phrases.values() for phrase in phrases]
    words = [*map(_hash, known.english), *(reduce(_after, map(_hash, start)) for start in starts)]
    chinese = [_from_han(word) for word, kind in known.chinese.items() if kind != "pass" and len(word) > 1]
    leet = np.zeros((2, 8400), np.uint8)
    for row, mapped in zip(leet, matcher.LEET, strict=True):
        row[ord("a") : ord("z") + 1] = range(ord("a"), ord("z") + 1)
        for code, letter in mapped.items():
            row[code] = letter
    pairs = np.zeros(1 << PAIR_BITS, np.bool_)
    for word in chinese:
        pairs[(ord(word[0]) * PAIR_FIRST + ord(word[1]) * PAIR_SECOND & 0xFFFFFFFF) >> 32 - PAIR_BITS] = True
    return Tables(
        _folds(),
        _kinds(),
        leet,
        _set(words),
        _set(map(_hash, known.abbreviations)),
        _set(map(_hash, chinese)),
        pairs,
        max(map(len, chinese)),
    )


def _folds() -> Array:
    """What `matcher.fold` makes of a character whatever stands around it."""
    table = np.arange(1 << 16, dtype=np.uint32)
    table[:2] = SIGN
    for code in range(1 << 16):
        if not (0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xF900):  # Chinese, Korean and surrogates stay as they are
            table[code] = _entry(chr(code))
    table[list(matcher.TRADITIONAL)] = list(matcher.TRADITIONAL.values())
    return table


def _entry(character: str) -> int:
    folded = matcher.fold(character)
    bare = "".join(c for c in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(c))
    if character < "\x02":
        return SIGN
    if not folded:
        return IGNORED
    if unicodedata.combining(character):
        return NAMED
    if folded != bare and re.search("[a-z]", bare):
        return NAMED
    if len(folded) == 1:
        return ord(folded)
    if set(folded) <= set(matcher.EDGES):
        return ord(".")
    plain = not re.search(rf"[a-z0-9\s\u0370-\u052f{han.HAN}]", folded) and not set(map(ord, folded)) & set(matcher.LEET[0])
    return SIGN if plain else NAMED


def _kinds() -> Array:
    kind = np.zeros(1 << 16, np.uint16)
    kind[ord("a") : ord("z") + 1] = LETTER
    kind[ord("0") : ord("9") + 1] = DIGIT
    for bit, signs in ((EDGE, matcher.EDGES), (SPELLS, " .-_*")):
        kind[[ord(sign) for sign in signs]] |= np.uint16(bit)
    kind[[code for code in range(1 << 16) if re.fullmatch(han.BETWEEN, chr(code))]] |= np.uint16(BETWEEN)
    kind[0x3400:0xA000] |= HAN | SPLITS
    kind[0x3000:0x3040] |= SPLITS
    kind[[code for code in range(1 << 16) if chr(code).isspace()]] |= SPLITS
    kind[0x370:0x530] |= ALIKE
    kind[0x261] |= ALIKE
    kind[[ord(word) for word, kind in lists().chinese.items() if kind != "pass" and len(word) == 1]] |= ALONE
    return kind


def _from_han(word: str) -> str:
    """A Chinese word without the Latin letters before the last one that it may begin with."""
    at = next(at for at, character in enumerate(word) if not character.isascii())
    return word[max(0, at - 1) :]


def _hash(word: str) -> int:
    value = START
    for character in word:
        value = (value ^ ord(character)) * STEP & (1 << 64) - 1
    return value


def _after(first: int, second: int) -> int:
    return (first * STEP ^ second) & (1 << 64) - 1


def _set(hashes: Iterable[int]) -> Array:
    """(a power of two,) uint64: a hash stands where its upper bits say, or behind."""
    keys = list(hashes)
    bits = (8 * len(keys)).bit_length()
    table = np.zeros(1 << bits, np.uint64)
    for key in keys:
        slot = key >> 64 - bits
        while table[slot] not in (0, key):
            slot = (slot + 1) % len(table)
        table[slot] = key
    return table
