"""Noise control: a set share of the tokens comes from texts that failed a soft rule, since cleaning too much hurts as well.

Each of those texts has a place in a fixed order, a hash of what it says; from the front of that order texts are taken until
the share is met. So which ones come back depends on nothing else, and every one has the same chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.final import texts_of
from danlu.data.curate.spool import Spool

Count = Callable[[list[str]], list[int]]
"""Tokens of each of some texts."""
SAMPLE_BYTES = 64 << 20
"""Clean text that is tokenised to learn how many tokens there are in a byte of it; all of it, if there is no more."""
AT_ONCE = 1 << 20


def byte_sizes(texts: list[str]) -> list[int]:
    """Stands in for a tokenizer where there is none: bytes."""
    return [len(text.encode()) for text in texts]


@dataclass(frozen=True)
class Pool:
    """A shard's documents that may be kept."""

    spool: Spool
    field: str
    clean: Array
    """Rows that are kept for what they are, int64."""
    candidates: Array
    """Rows that failed a soft rule and nothing else, int64."""
    weight: float
    """Passes over the shard's source."""


@dataclass
class Noise:
    """What was drawn."""

    drawn: list[Array]
    """Rows of each shard, int64, in order."""
    target: float
    clean_tokens: float
    """Of what is kept for what it is, times the weight of its source; estimated from a sample where there is much."""
    tokens: float = 0
    """Of what was drawn, times the weight of its source."""
    documents: int = 0
    candidates: int = 0
    unit: str = "tokens"
    """What was counted: tokens, or bytes where there is no tokenizer."""
    rules: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of those tokens, by rule."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "unit": self.unit,
            "achieved": round(self.tokens / max(1, self.tokens + self.clean_tokens), 6),
            "tokens": round(self.tokens),
            "clean_tokens": round(self.clean_tokens),
            "documents": self.documents,
            "candidates": self.candidates,
            "rules": {rule: round(tokens) for rule, tokens in sorted(self.rules.items())},
        }


def draw(pools: Sequence[Pool], ratio: float, count: Count) -> Noise:
    """Choose candidates until `ratio` of all tokens is theirs, or there are no more: the number that comes closest.

    Memory: some 50 bytes a candidate.
    """
    noise = Noise([], ratio, sum(_clean_tokens(pools, count)), unit="bytes" if count is byte_sizes else "tokens")
    noise.candidates = sum(len(pool.candidates) for pool in pools)
    wanted = ratio / (1 - ratio) * noise.clean_tokens
    keys = np.concatenate([pool.spool.draws()[pool.candidates] for pool in pools])
    rows = np.concatenate([pool.candidates for pool in pools])
    shard = np.repeat(np.arange(len(pools)), [len(pool.candidates) for pool in pools])
    taken = np.zeros(len(rows))
    for place, text_tokens in _tokens(pools, np.argsort(keys, kind="stable"), shard, rows, count):
        tokens = text_tokens * pools[shard[place]].weight
        if noise.tokens + tokens / 2 > wanted:
            break
        taken[place] = tokens
        noise.tokens += tokens
        noise.documents += 1
    for number, pool in enumerate(pools):
        mine = (shard == number) & (taken > 0)
        noise.drawn.append(rows[mine])
        for reason, tokens in zip(pool.spool.failures(rows[mine]), taken[mine].tolist(), strict=True):
            noise.rules[f"{reason['stage']}.{reason['rule']}"] += tokens
    return noise


def _clean_tokens(pools: Sequence[Pool], count: Count) -> Iterator[float]:
    """Tokens of the clean rows of each shard, times the weight."""
    total = sum(int(pool.spool.lengths()[pool.clean].sum()) for pool in pools)
    step = math.ceil(total / SAMPLE_BYTES) or 1
    for pool in pools:
        lengths = pool.spool.lengths()
        some = pool.clean[::step]
        size = int(lengths[some].sum())
        tokens = 0
        for start in range(0, len(some), 256):
            tokens += sum(count(list(texts_of(pool.spool, pool.field, some[start : start + 256]))))
        yield pool.weight * tokens * (int(lengths[pool.clean].sum()) / size if size else 0)


def _tokens(pools: Sequence[Pool], order: Array, shard: Array, rows: Array, count: Count) -> Iterator[tuple[int, int]]:
    """Each place of the order with the tokens of its text; texts are read a few at a time."""
    for start in range(0, len(order), 256):
        places = order[start : start + 256].tolist()
        texts: list[str] = []
        for place in places:
            pool = pools[shard[place]]
            texts += texts_of(pool.spool, pool.field, rows[place : place + 1])
        yield from zip(places, count(texts), strict=True)
