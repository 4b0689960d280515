"""How likely a model finds given texts, token by token, by the executor that serves it."""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.errors import UserError
from danlu.serve.executor import BLOCK, Executor, Logits, Piece

CHUNK, PROMPT_CHUNK = 64, 512
"""Tokens that are computed at once, where their logits are wanted and where they are not."""


class Scorer:
    """One text after the other. What begins as the one before is not computed again."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.limit = min(executor.context, executor.blocks * BLOCK)
        """Tokens that are given, at most."""
        self.table = list(range(-(-self.limit // BLOCK)))
        self.held: list[int] = []
        """Tokens in the cache."""

    def score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """The log-probability of a continuation in nats, and whether each of its tokens is the likeliest.

        Of a context that is too long the end counts. UserError: it is empty, or the continuation alone is too long.
        """
        if not context or len(continuation) > self.limit:
            raise UserError(f"{len(context)} tokens, {len(continuation)} to score: give at least one, at most {self.limit}")
        given = [*context, *continuation][:-1][-self.limit :]
        first = len(given) - len(continuation)
        at = min(_common(self.held, given), first)
        self.held, total, greedy = given, 0.0, True
        while at < len(given):
            end = min(at + PROMPT_CHUNK, first) if at < first else min(at + CHUNK, len(given))
            wanted = end - at if at >= first else 0
            logits_nv = self.executor.run([Piece(given[at:end], at, self.table, wanted)])
            if wanted:
                targets = np.asarray(continuation[at - first : end - first])
                total += float(_log_probabilities(logits_nv, targets).sum())
                greedy = greedy and bool((logits_nv.argmax(-1) == targets).all())
            at = end
        return total, greedy


def _common(left: list[int], right: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _log_probabilities(logits_nv: Logits, targets: Array) -> Array:
    scores_nv = logits_nv.astype(np.float64)
    scores_nv -= scores_nv.max(-1, keepdims=True)
    found: Array = scores_nv[np.arange(len(targets)), targets] - np.log(np.exp(scores_nv).sum(-1))
    return found
