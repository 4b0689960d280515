"""Conversations as people have them: one system prompt for all, several turns, short and long, beginning at random."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_COMMON = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were
all her she there would their we him been has when who will no more if out so up said what its about than into them can only
other time new some could these two may first then do any like my now over such our man me even most made after also did many
off before must well back through years much where your way down should because long each just state people those too mr how
little good world make very year still see own work men day get here old life both between being under three never know same
last another while us might great go come since against right came take used himself few house use place during high without
again home around small however found mrs part school thought went say general once upon water every left number
"""
WORDS = _COMMON.split()
ANSWERS = (16, 32, 64, 128)
"""Tokens of answers, at most: each is as frequent as the others."""


class Turn(NamedTuple):
    """What a person says, and how long the answer may be."""

    text: str
    max_tokens: int


class Conversation(NamedTuple):
    """When it begins, in seconds from the start, and its turns. Between them a person reads and thinks."""

    start: float
    turns: list[Turn]
    pauses: list[float]


class Shape(NamedTuple):
    """What `danlu bench-serve` takes."""

    conversations: int
    turns: int
    rate: float
    """Conversations that begin in a second, on average: a Poisson process."""
    system_words: int
    words: int
    """Of a person's turn, on average."""
    pause: float
    """Seconds before a further turn, on average."""


def system(shape: Shape, seed: int) -> str:
    """The prompt that all conversations begin with."""
    return _text(np.random.default_rng([seed, 1]), shape.system_words)


def conversations(shape: Shape, seed: int) -> list[Conversation]:
    """The same for the same seed."""
    random = np.random.default_rng([seed, 0])
    starts = np.cumsum(random.exponential(1 / shape.rate, shape.conversations))
    made = []
    for start in starts - starts[0]:
        lengths = 1 + random.geometric(1 / shape.words, shape.turns)
        turns = [Turn(_text(random, int(words)), int(random.choice(ANSWERS))) for words in lengths]
        made.append(Conversation(float(start), turns, random.exponential(shape.pause, shape.turns - 1).tolist()))
    return made


def _text(random: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[at] for at in random.integers(0, len(WORDS), words))
