"""Compiled loops: n-grams of words as 64-bit hashes, and a table of those that must not occur.

A word is what it is to near-duplicate removal (data/dedup/fold.py): case, accents, width and punctuation do not count, and a
character of a script without blanks is a word by itself.
"""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled
from danlu.data.dedup.fold import ALONE, IGNORED, SEPARATOR

_U64 = np.uint64
_WORD, _ROLL, _MIX = _U64(0x9E3779B97F4A7C15), _U64(0xD1342543DE82EF95), _U64(0xFF51AFD7ED558CCD)
_ALONE, _IGNORED, _SEPARATOR = np.uint32(ALONE), np.uint32(IGNORED), np.uint32(SEPARATOR)


@compiled
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ value >> _U64(32)) * _MIX
    return value ^ value >> _U64(29)


@compiled
def words(codes: Array, fold: Array, out: Array, ends: Array) -> int:
    """Hash the words of code points into `out` (uint64) and where each ends into `ends` (int64); return how many there are."""
    found = 0
    word = _U64(0)
    for at in range(len(codes) + 1):
        entry = _SEPARATOR
        if at < len(codes):
            code = codes[at]
            entry = fold[code] if code < len(fold) else code | _ALONE
        if entry == _IGNORED:
            continue
        if entry > _IGNORED and entry < _ALONE:
            word = (word ^ _U64(entry)) * _WORD + _U64(1)
            continue
        if word != 0:
            out[found], ends[found] = _mixed(word), at
            found += 1
            word = _U64(0)
        if entry >= _ALONE:
            out[found], ends[found] = _mixed(_U64(entry) * _WORD), at + 1
            found += 1
    return found


@compiled
def grams(hashed: Array, size: int, out: Array) -> int:
    """Hash every `size` words in a row of `hashed` into `out`; return how many there are. 0 stands for no gram."""
    drop = _U64(1)
    for _ in range(size):
        drop *= _ROLL
    rolling = _U64(0)
    for at in range(len(hashed)):
        rolling = rolling * _ROLL + hashed[at]
        if at >= size:
            rolling -= hashed[at - size] * drop
        if at >= size - 1:
            out[at - size + 1] = max(_mixed(rolling + _U64(size)), _U64(1))
    return max(0, len(hashed) - size + 1)


@compiled
def fill(keys: Array, rows: Array, grams: Array) -> None:
    """Put different grams into an open table with room for them (a power of two); rows holds their numbers."""
    mask = _U64(len(keys) - 1)
    for number in range(len(grams)):
        slot = grams[number] & mask
        while keys[slot] != 0:
            slot = (slot + _U64(1)) & mask
        keys[slot], rows[slot] = grams[number], number


@compiled
def first_match(keys: Array, rows: Array, asked: Array) -> tuple[int, int]:
    """(number of the first gram asked for that is in the table, its number there), or (-1, -1)."""
    mask = _U64(len(keys) - 1)
    for at in range(len(asked)):
        slot = asked[at] & mask
        while keys[slot] != 0:
            if keys[slot] == asked[at]:
                return at, rows[slot]
            slot = (slot + _U64(1)) & mask
    return -1, -1
