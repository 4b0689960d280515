"""The word lists that danlu carries: what stands in lists/*.txt, spelled out and ready to look up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

WEIGHTS = {"slur": 2.0, "plain": 1.0, "phrase": 1.0, "alike": 1.0, "maybe": 0.5, "near": 0.5, "pass": 0.0}
ENDINGS = ("", "s", "ed", "er", "ers", "ing", "in", "ings")


class Hit(NamedTuple):
    """A toxic word where it stands."""

    at: int
    """Character of the folded text."""
    word: str
    weight: float
    sure: bool
    """False: it also has a harmless sense."""


class Lists(NamedTuple):
    """What is looked for; Chinese words in braces are spelled out."""

    english: dict[str, float]
    """Weights."""
    maybe: frozenset[str]
    aim: frozenset[str]
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """By first word."""
    chinese: dict[str, str]
    """Kinds: slur, plain, maybe, alike, near, pass."""
    aim_at: frozenset[str]
    aim_link: frozenset[str]
    aim_degree: frozenset[str]
    aim_behind: frozenset[str]
    """Chinese: who a word is aimed at, what may stand between them, what is said of somebody, and what stands behind a word that
    is aimed."""
    abbreviations: dict[str, str]
    """Kinds of Chinese abuse in Latin letters."""
    by_length: dict[int, tuple[str, ...]]
    """English words without a harmless sense."""


def spellings(pattern: str, sounds: Mapping[str, str]) -> Iterator[str]:
    """All that a word with braces stands for; ~ma in braces is what `sounds` has for ma."""
    pattern = re.sub("~([a-z]+)", lambda match: sounds[match[1]], pattern)
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
    chinese: dict[str, str] = {}
    aims = {"aim": set[str](), "link": set[str](), "degree": set[str](), "behind": set[str]()}
    abbreviations: dict[str, str] = {}
    sounds: dict[str, str] = {}
    for kind, words in _entries("chinese.txt"):
        if kind == "sound":
            sounds[words[0]] = "|".join(words)
            continue
        for word in (spelled.lower() for pattern in words for spelled in spellings(pattern, sounds)):
            if kind in aims:
                aims[kind].add(word)
            elif word.isascii():
                abbreviations.setdefault(word, kind)
            elif kind == "pass":
                chinese[word] = kind
            else:
                chinese.setdefault(word, kind)
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
        frozenset(aims["aim"]),
        frozenset(aims["link"]),
        frozenset(aims["degree"]),
        frozenset(aims["behind"]),
        abbreviations,
        by_length,
    )
