"""What a model makes of a text, by the executor that serves it: the price of its quantization as users pay it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from danlu.serve.executor import BLOCK, Executor, Logits, Piece

WINDOW = 512
"""Tokens that are read from the beginning of a context of their own; the last window may be shorter."""
CHUNK = 64


def perplexity(executor: Executor, tokens: NDArray[np.int64]) -> float:
    """e to the mean negative log-likelihood of all tokens but the first of each window."""
    nats, count = likelihood(executor, tokens)
    return math.exp(min(nats / count, 700.0))


def likelihood(executor: Executor, tokens: NDArray[np.int64]) -> tuple[float, int]:
    """The negative log-likelihood of all tokens but the first of each window, summed, and how many these are."""
    window = min(WINDOW, executor.context, executor.blocks * BLOCK)
    nats, count = 0.0, 0
    for start in range(0, len(tokens) - 1, window):
        part = tokens[start : start + window].tolist()
        for at in range(0, len(part) - 1, CHUNK):
            given = part[at : min(at + CHUNK, len(part) - 1)]
            logits_nv = executor.run([Piece(given, at, list(range(-(-window // BLOCK))), len(given))])
            nats += _nats(logits_nv, part[at + 1 : at + 1 + len(given)])
            count += len(given)
    return nats, count


def _nats(logits_nv: Logits, targets: list[int]) -> float:
    scores_nv = logits_nv.astype(np.float64)
    largest_n = scores_nv.max(axis=1)
    masses_n = np.log(np.exp(scores_nv - largest_n[:, None]).sum(axis=1)) + largest_n
    return float((masses_n - scores_nv[np.arange(len(targets)), targets]).sum())
