"""The word lists that danlu carries: what stands in lists/*.txt, spelled out and ready to look up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

WEIGHTS = {"slur": 2.0, "plain": 1.0, "phrase": 1.0, "maybe": 0.5}
ENDINGS = ("", "s", "ed", "er", "ers", "ing", "in", "ings")


class Lists(NamedTuple):
    """What is looked for. Words map to weights; Chinese words in braces are spelled out."""

    english: dict[str, float]
    maybe: frozenset[str]
    aim: frozenset[str]
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """By first word."""
    chinese: dict[str, float]
    """Weights; 0: harmless."""
    chinese_maybe: frozenset[str]
    chinese_aim: frozenset[str]
    abbreviations: frozenset[str]
    by_length: dict[int, tuple[str, ...]]
    """English words without a harmless sense."""


def spellings(pattern: str) -> Iterator[str]:
    """All that a word with braces stands for."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    for choice in product(*(part.split("|") if odd else [part] for part, odd in zip(parts, (0, 1) * len(parts), strict=False))):
        yield "".join(choice)


def _entries(name: str) -> Iterator[tuple[str, list[str]]]:
    for line in (files(__package__) / "lists" / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, *words = line.split()
            yield kind, words


@cache
def lists() -> Lists:
    """The lists that danlu carries."""
    english: dict[str, float] = {}
    maybe, aim, phrases = set(), set(), list[tuple[str, ...]]()
    for kind, words in _entries("english.txt"):
        if kind == "phrase":
            phrases.append(tuple(" ".join(words).replace("'", " ").split()))
        elif kind == "aim":
            aim.update(words)
        else:
            for word in words:
                for form in [word[1:-1] + ending for ending in ENDINGS] if word.startswith("(") else [word]:
                    english[form] = WEIGHTS[kind]
                    if kind == "maybe":
                        maybe.add(form)
    by_first: dict[str, tuple[tuple[str, ...], ...]] = {}
    for phrase in phrases:
        by_first[phrase[0]] = (*by_first.get(phrase[0], ()), phrase)
    chinese: dict[str, float] = {}
    chinese_maybe, chinese_aim, abbreviations = set(), set(), set()
    for kind, words in _entries("chinese.txt"):
        for word in (spelled.lower() for pattern in words for spelled in spellings(pattern)):
            if kind == "aim":
                chinese_aim.add(word)
            elif word.isascii():
                abbreviations.add(word)
            elif kind == "pass":
                chinese[word] = 0.0
            else:
                chinese.setdefault(word, WEIGHTS[kind])
                if kind == "maybe":
                    chinese_maybe.add(word)
    by_length: dict[int, tuple[str, ...]] = {}
    for word in english:
        if word not in maybe:
            by_length[len(word)] = (*by_length.get(len(word), ()), word)
    return Lists(
        english,
        frozenset(maybe),
        frozenset(aim),
        by_first,
        chinese,
        frozenset(word for word in chinese_maybe if chinese[word] == WEIGHTS["maybe"]),
        frozenset(chinese_aim),
        frozenset(abbreviations),
        by_length,
    )
