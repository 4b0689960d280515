"""A compiled look at texts that tells which kinds of personal data each may hold, so that few texts meet the patterns.

It errs to one side: what it does not name no pattern finds with a check that holds; of what it names much is none.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import ZERO, compiled

NUMBER, EMAIL, IP, KEY, RANDOM = (1 << bit for bit in range(5))
"""What a text may hold: digits enough for a phone, a card or an identity; RANDOM: letters and digits that something is set to."""
_DIGIT, _HEX, _GAP, _VALUE, _LOCAL, _HOST, _LETTER, _NUMERIC = (1 << bit for bit in range(8))
_KEYS = [
    "-----BEGIN", "AKIA", "ASIA", "ABIA", "ACCA", "LTAI", "AKID", "AIza", "ya29.", "github_pat_", "glpat-", "xox", "npm_",
    "pypi-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "sk_", "rk_", "pk_", "sk-", "hf_", "SG.", "eyJ",
]  # fmt: skip
"""What a key begins with."""
_BEHIND = 10
"""Letters, digits, - and _ that are behind each of those, the first one aside, at least."""
_LONGEST = max(map(len, _KEYS))
_DIGITS, _DIGITS_ABROAD = 9, 8
"""Digits of the shortest number that is looked for, and of one behind a +; two signs at most stand between two of them."""
_NEVER = -(1 << 40)
"""Length of a row of letters that nothing is set to."""
_RANDOM = 20
"""Characters of the shortest password that is looked for."""
_AT, _PLUS, _COLON, _DOT, _A, _T, _EQUAL, _ARROW = (ord(character) for character in "@+:.at=>")


def may_hold(texts: Sequence[str]) -> Array:
    """What texts may hold, (texts,) uint8."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    out = np.zeros(len(texts), np.uint8)
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    _scan(np.frombuffer(b"".join(encoded) + bytes(_LONGEST + _BEHIND), np.uint8), ends, *_tables(), out)
    return out


@cache
def _tables() -> tuple[Array, Array, Array]:
    """What a byte is, (256,) uint8; whether two begin a key, (65536,) bool; the beginnings, (keys, longest + 1) uint8, with
    their lengths in the last column."""
    kinds = np.zeros(256, np.uint8)
    letters = string.ascii_letters + string.digits
    for bit, characters in (
        (_DIGIT, string.digits), (_HEX, string.hexdigits), (_GAP, "-. ()"), (_VALUE, letters + "+/_=-"),
        (_LOCAL, letters + "._%+-"), (_HOST, letters + "_-"), (_LETTER, string.ascii_letters),
        (_NUMERIC, string.hexdigits + "-. ():"),
    ):  # fmt: skip
        kinds[[ord(character) for character in characters]] |= np.uint8(bit)
    pairs = np.zeros(1 << 16, np.bool_)
    keys = np.zeros((len(_KEYS), _LONGEST + 1), np.uint8)
    for row, key in zip(keys, _KEYS, strict=True):
        row[: len(key)] = list(key.encode())
        row[-1] = len(key)
        pairs[ord(key[0]) << 8 | ord(key[1])] = True
    return kinds, pairs, keys


@compiled
def _scan(data: Array, ends: Array, kinds: Array, pairs: Array, keys: Array, out: Array) -> None:
    start = ZERO
    for number in range(len(ends)):
        out[number] = _numbers(data, start, ends[number], kinds) | _others(data, start, ends[number], kinds, pairs, keys)
        start = ends[number]


@compiled
def _numbers(data: Array, start: int, stop: int, kinds: Array) -> int:
    """Whether there are digits enough in a row, an address of four numbers, or one of hexadecimal numbers and colons."""
    found, digits, gap, abroad = 0, 0, 0, False
    group, dots, colons = 0, 0, 0
    for at in range(start, stop):
        byte = data[at]
        kind = kinds[byte]
        if not kind & _NUMERIC:
            digits = group = dots = colons = 0
            continue
        if kind & _DIGIT:
            if digits == 0:
                abroad = at > start and data[at - 1] == _PLUS
            digits, gap, group = digits + 1, 0, group + 1
            if digits >= _DIGITS or (abroad and digits >= _DIGITS_ABROAD):
                found |= NUMBER
            if dots > 2:
                found |= IP
            continue
        gap += 1
        if digits and (gap > 2 or not kind & _GAP):
            digits = 0
        dots = dots + 1 if byte == _DOT and group else 0
        group = 0
        if byte == _COLON:
            colons += 1
            if colons > 2:
                found |= IP
        elif not kind & _HEX:
            colons = 0
    return found


@compiled
def _others(data: Array, start: int, stop: int, kinds: Array, pairs: Array, keys: Array) -> int:
    """Whether there is something like a mail address, the beginning of a key, or a long row of letters and digits."""
    found, length, digit, letter = 0, 0, False, False
    for at in range(start, stop):
        byte = data[at]
        kind = kinds[byte]
        if kind & _VALUE:
            if length == 0 and not _is_set(data, start, at):
                length = _NEVER
            if length < 0 and byte == _EQUAL:
                length = -1  # what is set begins behind it
            length, digit, letter = length + 1, digit | (kind & _DIGIT != 0), letter | (kind & _LETTER != 0)
            if length >= _RANDOM and digit and letter:
                found |= RANDOM
        else:
            length, digit, letter = 0, False, False
        if byte == _AT:
            if at > start and kinds[data[at - 1]] & _LOCAL and kinds[data[at + 1]] & _HOST:
                found |= EMAIL
        elif byte == _A and at > start and data[at + 1] == _T and _opens(data[at - 1]) and _closes(data[at + 2]):
            found |= EMAIL
        if pairs[np.int64(byte) << 8 | data[at + 1]] and _is_key(data, at, kinds, keys):
            found |= KEY
    return found


@compiled
def _is_set(data: Array, start: int, at: int) -> bool:
    """Whether before a byte, quotes and blanks aside, there is a colon, an equals sign, an arrow or what is not ASCII."""
    at -= 1
    while at >= start and (data[at] <= 32 or data[at] == 34 or data[at] == 39 or data[at] == 96):
        at -= 1
    return at >= start and (data[at] == _COLON or data[at] == _EQUAL or data[at] == _ARROW or data[at] > 127)


@compiled
def _opens(byte: int) -> bool:
    return byte == 40 or byte == 91  # ( and [


@compiled
def _closes(byte: int) -> bool:
    return byte == 41 or byte == 93


@compiled
def _is_key(data: Array, at: int, kinds: Array, keys: Array) -> bool:
    for row in keys:
        length = np.int64(row[-1])
        same = 0
        while same < length and data[at + same] == row[same]:
            same += 1
        if same < length:
            continue
        behind = 1
        while behind < _BEHIND and kinds[data[at + length + behind]] & _HOST:
            behind += 1
        if behind == _BEHIND or row[0] == 45:  # a private key between lines of -
            return True
    return False
