"""From logits to a token. Nothing but the request's own settings, seed and tokens decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from danlu.serve.executor import Logits

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The order: penalties, temperature, top_k, top_p, min_p."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens below this share of the most likely one's probability are dropped."""
    repetition_penalty: float = 1.0
    """Scores of tokens that came before are divided by it, or multiplied where negative (Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both as OpenAI defines them, over the new tokens."""
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many of the most likely tokens are reported with each; None: not even the chosen one's."""
    ignore_end: bool = False


def draw(logits_v: Logits, sampling: Sampling, tokens: Sequence[int], prompt: int) -> int:
    """The next token of a sequence of which ``prompt`` tokens were given. The draw is of (seed, number of tokens) alone."""
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    if sampling.temperature == 0 and not penalised:
        return int(logits_v.argmax())
    scores_v = _penalised(logits_v.astype(np.float64), sampling, tokens, prompt)
    if sampling.temperature == 0:
        return int(scores_v.argmax())
    # The largest is subtracted first, so that a tiny temperature becomes greedy and not NaN.
    scores_v = (scores_v - scores_v.max()) / sampling.temperature
    cut = sampling.top_k or sampling.top_p < 1
    kept = np.argsort(-scores_v, kind="stable") if cut else np.arange(len(scores_v))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    probability = np.exp(scores_v[kept])
    probability /= probability.sum()
    if sampling.top_p < 1:  # what lies behind the first top_p of the mass goes; the first always stays
        before = np.cumsum(probability) - probability
        kept, probability = kept[before < sampling.top_p], probability[before < sampling.top_p]
    if sampling.min_p > 0:
        likely = probability >= sampling.min_p * probability.max()
        kept, probability = kept[likely], probability[likely]
    mass = np.cumsum(probability)
    random = np.random.Generator(np.random.Philox(key=sampling.seed, counter=len(tokens) - prompt)).random()
    return int(kept[min(int(np.searchsorted(mass, random * mass[-1], side="right")), len(kept) - 1)])


def _penalised(scores_v: Scores, sampling: Sampling, tokens: Sequence[int], prompt: int) -> Scores:
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.asarray(tokens))
        factor = np.where(scores_v[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        scores_v[seen] *= factor
    if sampling.presence_penalty or sampling.frequency_penalty:
        seen, counts = np.unique(np.asarray(tokens[prompt:], np.int64), return_counts=True)
        scores_v[seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return scores_v


def log_probabilities(logits_v: Logits, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural logarithm of the model's own probability of a token, and of the ``top`` most likely ones."""
    scores_v = logits_v.astype(np.float64)
    scores_v -= scores_v.max()
    scores_v -= np.log(np.exp(scores_v).sum())
    best = np.argsort(-scores_v, kind="stable")[:top]
    return float(scores_v[token]), [(int(each), float(scores_v[each])) for each in best]
