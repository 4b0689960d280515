"""Noise control: a set share of the tokens comes from texts that failed a soft rule, since cleaning too much hurts as well.

Each of those texts has a place in a fixed order, a hash of what it says; from the front of that order texts are taken until
the share is met. So which ones come back depends on nothing else, and every one has the same chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.final import texts_of
from danlu.data.curate.spool import Spool

Count = Callable[[list[str]], list[int]]
"""Tokens of each of some texts."""
SAMPLE_BYTES = 64 << 20
"""Clean text that is tokenised to learn how many tokens there are in a byte of it; all of it, if there is no more."""
AT_ONCE = 256
"""Texts that are tokenised together."""
MARGIN = 1.25
"""How much more than wanted is tokenised, since texts that fail rules have more tokens in a byte or fewer than others."""


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

    Memory: some 100 bytes a candidate.
    """
    tokens, size = _clean(pools, count)
    noise = Noise([], ratio, tokens, unit="bytes" if count is byte_sizes else "tokens")
    noise.candidates = sum(len(pool.candidates) for pool in pools)
    wanted = ratio / (1 - ratio) * tokens
    order = np.argsort(np.concatenate([pool.spool.draws()[pool.candidates] for pool in pools]), kind="stable")
    lengths = np.concatenate([pool.weight * pool.spool.lengths()[pool.candidates] for pool in pools])[order]
    # Only the front of the order is tokenised: a little more than seems needed, and more again while that is too little.
    guess = lengths.cumsum() * (tokens / size if size else 1.0)
    found = np.full(len(order), np.nan)
    reach = int(np.searchsorted(guess, MARGIN * wanted)) + 1
    while True:
        _count(pools, order[:reach], found, count)
        sums = found[order[:reach]].cumsum()
        if reach >= len(order) or sums[-1] > MARGIN * wanted:
            break
        reach *= 2
    stop = int(np.searchsorted(sums - found[order[:reach]] / 2, wanted))
    taken = np.zeros(len(order), bool)
    taken[order[:stop]] = True
    noise.documents, noise.tokens = stop, float(sums[stop - 1]) if stop else 0.0
    for pool, mine, figures in zip(pools, _split(pools, taken), _split(pools, found), strict=True):
        noise.drawn.append(pool.candidates[mine])
        for reason, figure in zip(pool.spool.failures(pool.candidates[mine]), figures[mine].tolist(), strict=True):
            noise.rules[f"{reason['stage']}.{reason['rule']}"] += figure
    return noise


def _clean(pools: Sequence[Pool], count: Count) -> tuple[float, float]:
    """Tokens and bytes of the clean rows, times the weight of their source."""
    step = math.ceil(sum(int(pool.spool.lengths()[pool.clean].sum()) for pool in pools) / SAMPLE_BYTES) or 1
    tokens = size = 0.0
    for pool in pools:
        lengths = pool.spool.lengths()
        some = pool.clean[::step]
        sampled, whole = int(lengths[some].sum()), int(lengths[pool.clean].sum())
        if sampled:
            tokens += pool.weight * sum(_token_counts(pool, some, count)) * whole / sampled
            size += pool.weight * whole
    return tokens, size


def _split(pools: Sequence[Pool], values: Array) -> list[Array]:
    """Values of all candidates, by shard."""
    return np.split(values, np.cumsum([len(pool.candidates) for pool in pools])[:-1])


def _count(pools: Sequence[Pool], places: Array, found: Array, count: Count) -> None:
    """Fill in the tokens, times the weight, of those of some candidates that are not known yet, shard by shard."""
    wanted = np.zeros(len(found), bool)
    wanted[places] = True
    wanted &= np.isnan(found)
    for pool, mine, figures in zip(pools, _split(pools, wanted), _split(pools, found), strict=True):
        figures[mine] = [pool.weight * tokens for tokens in _token_counts(pool, pool.candidates[mine], count)]


def _token_counts(pool: Pool, rows: Array, count: Count) -> Iterator[int]:
    """Tokens of the texts of rows, a few texts at a time."""
    texts = texts_of(pool.spool, pool.field, rows)
    while some := list(islice(texts, AT_ONCE)):
        yield from count(some)
