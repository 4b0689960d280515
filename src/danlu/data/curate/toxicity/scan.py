"""A compiled look at texts that tells which may hold a toxic word: the few that the matcher has to read.

It errs to one side: a text that it lets pass has no hit, one that it names may have none. Named is what a table of characters
cannot fold, since it depends on what stands around it: accents written apart, ligatures, letters of two alphabets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import ZERO, compiled
from danlu.data.curate.toxicity import scan_tables as of

_START, _STEP, _BITS = np.uint64(of.START), np.uint64(of.STEP), np.uint64(64)
_SIGN, _BLANK = np.uint32(of.SIGN), np.uint32(32)
_LETTER, _DIGIT, _EDGE, _SPELLS, _BETWEEN = of.LETTER, of.DIGIT, of.EDGE, of.SPELLS, of.BETWEEN
_HAN, _ALIKE, _SPLITS, _ALONE, _IGNORED, _NAMED = of.HAN, of.ALIKE, of.SPLITS, of.ALONE, of.IGNORED, of.NAMED
_FIRST, _SECOND, _PAIR_SHIFT = np.uint32(of.PAIR_FIRST), np.uint32(of.PAIR_SECOND), np.uint32(32 - of.PAIR_BITS)
_STAR = 42


def suspects(texts: Sequence[str]) -> list[int]:
    """The numbers of the texts that may hold a toxic word, in order."""
    data = "".join(texts).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(data or b"\0\0\0\0", np.uint32)
    lengths = np.array([len(text) for text in texts], np.int64)
    out = np.zeros(len(texts), np.bool_)
    _scan(codes, lengths, np.empty(int(lengths.max(initial=0)) + 1, np.uint32), *of.tables(), out)
    found: list[int] = np.flatnonzero(out).tolist()
    return found


@compiled
def _scan(
    codes: Array,
    lengths: Array,
    text: Array,
    fold: Array,
    kind: Array,
    leet: Array,
    words: Array,
    short: Array,
    chinese: Array,
    pairs: Array,
    longest: int,
    out: Array,
) -> None:
    start = 0
    for number in range(len(lengths)):
        stop = start + lengths[number]
        length, wide = _folded(codes[start:stop], fold, kind, text)
        out[number] = (
            length < 0
            or _has_word(text[: length + 1], kind, leet, words, short, wide)
            or _has_disguised(text[: length + 1], kind, leet, words, wide)
            or (wide and _has_chinese(text[: length + 1], kind, chinese, pairs, longest))
        )
        start = stop


@compiled
def _folded(codes: Array, fold: Array, kind: Array, text: Array) -> tuple[int, bool]:
    """Fold a text into `text` and put a blank behind; its length, or -1 for a suspect, and whether it is not ASCII."""
    length, wide, before = 0, False, np.int64(0)
    for at in range(len(codes)):
        code = codes[at]
        wide |= code > 127
        if code < len(fold):
            code = fold[code]
        else:  # pictures and rare Chinese characters are what they are
            code = _SIGN if 0x1F300 <= code < 0x1FB00 or 0x20000 <= code < 0x2F800 else np.uint32(_NAMED)
        if code == _IGNORED:
            continue
        now = np.int64(kind[code])
        if code == _NAMED or (now & _ALIKE and before & _LETTER) or (now & _LETTER and before & _ALIKE):
            return -1, wide
        text[length] = code
        length += 1
        before = now
    text[length] = _BLANK
    return length, wide


@compiled
def _has_word(text: Array, kind: Array, leet: Array, words: Array, short: Array, wide: bool) -> bool:
    """Latin words, phrases, stretched words, words spelled out, and in a text that is not ASCII Chinese abuse by its letters."""
    one_before, two_before = np.uint64(0), np.uint64(0)
    spelled, singles, stop = _START, 0, -9
    at = 0
    while at < len(text):
        if not kind[text[at]] & _LETTER:
            at += 1
            continue
        first, word, run, stretched = at, _START, 0, False
        while kind[text[at]] & _LETTER:  # the blank at the end is none
            run = run + 1 if at > first and text[at] == text[at - 1] else 1
            stretched |= run > 2
            word = _step(word, text[at])
            at += 1
        two = one_before * _STEP ^ word
        three = (two_before * _STEP ^ one_before) * _STEP ^ word
        if _has(words, word) or _has(words, two) or _has(words, three):
            return True
        if stretched and _stands_for(text[first:at], leet[0], words):
            return True
        beside = kind[text[at]] | (kind[text[first - 1]] if first else 0)
        if wide and at - first > 1 and _has(short, word):
            return True
        two_before, one_before = one_before, word
        if at - first > 1 or beside & _DIGIT:
            singles = 0
        else:
            joined = singles > 0 and first == stop + 1 and kind[text[stop]] & _SPELLS
            singles = singles + 1 if joined else 1
            spelled = _step(spelled if joined else _START, text[first])
            if singles > 12 or (singles > 2 and (_has(words, spelled) or (wide and _has(short, spelled)))):
                return True
        stop = at
    return False


@compiled
def _has_disguised(text: Array, kind: Array, leet: Array, words: Array, wide: bool) -> bool:
    """Words with signs or digits between or for their letters, within a token; only in ASCII is its length that of the token."""
    first = 0
    for at in range(len(text)):
        if not kind[text[at]] & _SPLITS:
            continue
        start, stop = first, at
        first = at + 1
        signs = 0
        for i in range(start, stop):
            signs += not kind[text[i]] & _LETTER
        if signs == 0 or (stop - start > 48 and not wide):
            continue
        while start < stop and kind[text[start]] & _EDGE:
            start, signs = start + 1, signs - 1
        while start < stop and kind[text[stop - 1]] & _EDGE:
            stop, signs = stop - 1, signs - 1
        length = stop - start
        if signs == 0 or (not wide and (length > 24 or 2 * signs > length)):
            continue
        if _is_masked(text[start:stop], kind):
            return True
        for row in range(len(leet)):
            if _stands_for(text[start:stop], leet[row], words):
                return True
    return False


@compiled
def _stands_for(token: Array, leet: Array, words: Array) -> bool:
    """Whether its letters, or those that its signs stand for, may be a word; three of a letter in a row may be one or two."""
    whole, once, twice = _START, _START, _START
    last, run, length = np.uint32(0), 0, 0
    for at in range(len(token) + 1):
        letter = np.uint32(0)
        if at < len(token):
            letter = np.uint32(leet[token[at]]) if token[at] < len(leet) else letter
            if letter == 0:
                continue
            whole = _step(whole, letter)
            length += 1
        if letter == last:
            run += 1
            continue
        for number in range(run):
            if run < 3 or number < 1:
                once = _step(once, last)
            if run < 3 or number < 2:
                twice = _step(twice, last)
        last, run = letter, 1
    return length > 2 and (_has(words, whole) or _has(words, once) or _has(words, twice))


@compiled
def _is_masked(token: Array, kind: Array) -> bool:
    """Whether a token is letters and asterisks, and the former are enough to tell a word."""
    stars = 0
    for code in token:
        stars += code == _STAR
        if code != _STAR and not kind[code] & _LETTER:
            return False
    return token[0] != _STAR and len(token) > 3 and 0 < 3 * stars <= 2 * len(token) + 1


@compiled
def _has_chinese(text: Array, kind: Array, chinese: Array, pairs: Array, longest: int) -> bool:
    """Chinese words, with up to three signs between two characters or none."""
    before, signs = ZERO, 9
    for at in range(len(text)):
        if kind[text[at]] & _ALONE or (at and _begins(text, at - 1, at, kind, chinese, pairs, longest)):
            return True
        if kind[text[at]] & _HAN:
            if 0 < signs < 4 and _begins(text, before, at, kind, chinese, pairs, longest):
                return True
            before, signs = at, 0
        else:
            signs = signs + 1 if kind[text[at]] & _BETWEEN else 9
    return False


@compiled
def _begins(text: Array, first: int, second: int, kind: Array, chinese: Array, pairs: Array, longest: int) -> bool:
    """Whether a word begins with two characters and goes on with those behind them, signs passed over."""
    mixed = np.uint32(text[first] * _FIRST) + np.uint32(text[second] * _SECOND)
    if not pairs[np.uint32(mixed) >> _PAIR_SHIFT]:
        return False
    word, length = _step(_START, text[first]), 1
    for at in range(second, len(text)):
        if kind[text[at]] & _BETWEEN:
            continue
        word = _step(word, text[at])
        length += 1
        if _has(chinese, word):
            return True
        if length == longest:
            break
    return False


@compiled
def _has(table: Array, key: np.uint64) -> bool:
    bits = 0
    while 1 << bits < len(table):
        bits += 1
    slot = np.int64(key >> np.uint64(_BITS - np.uint64(bits)))
    while table[slot] != 0:
        if table[slot] == key:
            return True
        slot = (slot + 1) & (len(table) - 1)
    return False


@compiled
def _step(value: np.uint64, code: np.uint32) -> np.uint64:
    return (value ^ np.uint64(code)) * _STEP
