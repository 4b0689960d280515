"""Toxic words in Chinese text, which has no blanks: looked up from every character that begins one.

Spellings by sound or look stand in the list, and signs between two characters (傻*逼) are passed over. What also has a harmless
sense counts by where it stands: beside another hit, or where it is aimed at somebody, before it (你就是个…) or behind (…东西).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.toxicity.word_lists import WEIGHTS, Hit, lists

NEAR = 16
"""Characters within which another hit makes a word with a harmless sense a toxic one."""
BEFORE, BEHIND = 10, 4
"""Characters in which it is looked for whom a word is aimed at."""
PAIR_BITS = 18
HAN = "\u3400-\u9fff"
BETWEEN = r"(?:[^\w\n,!?;:()。、《》「」“”]|_)"
"""A sign that may stand between two characters of a word: blanks, stars, pictures; not what parts sentences."""
MEASURES = ("个", "群", "帮", "种")
"""Behind which a noun stands, and no unit or name: 这个sb."""
_BETWEEN = re.compile(rf"(?<=[{HAN}]){BETWEEN}{{1,3}}(?=[{HAN}])")
_CLAUSE = re.compile("[。！？；：,.!?;:\n]")
_LETTERS = re.compile(r"(?<![a-z0-9.])[a-z]{2,10}(?![a-z0-9]|\.[a-z0-9])")
_SPELLED = re.compile(r"(?<![a-z0-9])[a-z](?:[ .\-_*][a-z]){3,9}(?![a-z0-9])")


class Found(NamedTuple):
    """A word of the list where it stands."""

    start: int
    stop: int
    word: str
    kind: str


def hits(folded: str) -> Iterator[Hit]:
    """The toxic words of a folded text; those with a harmless sense only where the text says that they are meant."""
    text = _BETWEEN.sub("", folded)
    found = [*_words(text), *_initials(text)]
    sure = sorted(one.start for one in found if one.kind in ("slur", "plain"))
    for start, stop, word, kind in found:
        if kind in ("slur", "plain"):
            yield Hit(start, word, WEIGHTS[kind], True)
        elif _beside(start, sure) or (kind != "near" and _meant(text, start, stop, kind)):
            yield Hit(start, word, WEIGHTS[kind], kind == "alike")


def _words(text: str) -> Iterator[Found]:
    """The longest word of the list at each place, harmless ones left out."""
    chinese, longest = lists().chinese, _longest()
    end = 0
    for at in _starts(text):
        if at < end:
            continue
        for length in range(longest.get(text[at], 0), 0, -1):
            word = text[at : at + length]
            if (kind := chinese.get(word)) is not None:
                end = at + length
                if kind != "pass":
                    yield Found(at, end, word, kind)
                break


def _initials(text: str) -> Iterator[Found]:
    """Abuse in Latin letters, by initials or in full, also spelled out: nmsl, caonima, c a o n i m a."""
    known = lists().abbreviations
    for match in _LETTERS.finditer(text):
        if (kind := known.get(match[0])) is not None:
            yield Found(match.start(), match.end(), match[0], kind)
    for match in _SPELLED.finditer(text):
        if (word := re.sub("[^a-z]", "", match[0])) in known:
            yield Found(match.start(), match.end(), word, "plain")


def _beside(at: int, sure: list[int]) -> bool:
    place = bisect_left(sure, at - NEAR)
    return place < len(sure) and sure[place] <= at + NEAR


def _meant(text: str, start: int, stop: int, kind: str) -> bool:
    """Whether a word is aimed at somebody; one that only sounds like abuse, also whether it is all that a clause says."""
    before = _CLAUSE.split(text[max(0, start - BEFORE) : start])[-1].strip()
    behind = _CLAUSE.split(text[stop : stop + BEHIND])[0].strip()
    aimed, said, followed = _aims()
    if aimed.search(before) or followed.match(behind) or (stop - start > 1 and said.search(before)):
        return True
    if kind != "alike":
        return False
    return before.endswith(MEASURES) or (not behind and (not before or text[start].isascii()))


@cache
def _aims() -> tuple[re.Pattern[str], ...]:
    """What ends right before a word that is aimed at somebody, or a longer one, and what begins right behind it."""
    known = lists()
    parts = known.aim_at, known.aim_link, known.aim_degree, known.aim_behind
    who, link, degree, behind = ("|".join(sorted(words, key=len, reverse=True)) for words in parts)
    return re.compile(rf"(?:{who})(?:{link})*$"), re.compile(rf"(?:{degree})$"), re.compile(behind)


@cache
def _longest() -> dict[str, int]:
    """The longest word of the list by its first character."""
    longest: dict[str, int] = {}
    for word in lists().chinese:
        longest[word[0]] = max(longest.get(word[0], 0), len(word))
    return longest


@cache
def _beginnings() -> tuple[Array, Array]:
    """Whether a word of the list may begin with two characters, by their hash; whether one character is a word, by its code."""
    pairs, alone = np.zeros(1 << PAIR_BITS, bool), np.zeros(1 << 16, bool)
    for word in lists().chinese:
        if len(word) == 1:
            alone[ord(word)] = True
        else:
            pairs[_hashed(np.array([ord(word[0])], np.uint32), np.array([ord(word[1])], np.uint32))] = True
    return pairs, alone


def _hashed(first: Array, second: Array) -> Array:
    mixed: Array = first * np.uint32(0x9E3779B1) + second * np.uint32(0x85EBCA77)
    return np.right_shift(mixed, np.uint32(32 - PAIR_BITS))


def _starts(text: str) -> list[int]:
    """Where words of the list may begin."""
    codes = np.frombuffer((text + " ").encode("utf-32-le", "surrogatepass"), np.uint32)
    pairs, alone = _beginnings()
    found: list[int] = np.flatnonzero(pairs[_hashed(codes[:-1], codes[1:])] | alone[np.minimum(codes[:-1], 0xFFFF)]).tolist()
    return found
