"""Token by token continuation of one prompt with a key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.base import Sampling
from danlu.model.shape import ModelShape


class KeyValueCache:
    """Keys and values of one sequence, allocated once: (1, capacity, g, k) a layer; g is this tensor rank's share of heads."""

    def __init__(self, shape: ModelShape, capacity: int, layers: Iterable[int], tensor_ranks: int = 1) -> None:
        size = [1, capacity, shape.key_value_heads // tensor_ranks, shape.head_dim]
        self.keys = {layer: paddle.zeros(size) for layer in layers}
        self.values = {layer: paddle.zeros(size) for layer in layers}
        self.length = 0

    def extend(self, layer: int, key_btgk: Tensor, value_btgk: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions after the ones before; return all."""
        end = self.length + key_btgk.shape[1]
        self.keys[layer][:, self.length : end] = key_btgk
        self.values[layer][:, self.length : end] = value_btgk
        return self.keys[layer][:, :end], self.values[layer][:, :end]


def generate(
    logits: Callable[[Tensor], NDArray[np.float32] | None],
    tell: Callable[[int], int],
    tokens: list[int],
    new_tokens: int,
    sampling: Sampling,
    end_id: int | None,
) -> Iterator[int]:
    """Yield new tokens, new_tokens at most; stops before end_id.

    ``logits`` takes the tokens (1, t) that follow those before and returns the logits (v) after the last one, or None where
    another process sees them; ``tell`` passes on the token that is drawn there.
    """
    random = np.random.Generator(np.random.Philox(sampling.seed))
    new = tokens
    for _ in range(new_tokens):
        seen = logits(paddle.to_tensor([new], dtype="int64"))
        token = tell(0 if seen is None else _draw(seen, sampling, random))
        if token == end_id:
            return
        yield token
        new = [token]


def _draw(logits_v: NDArray[np.float32], sampling: Sampling, random: np.random.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits_v.argmax())
    # FP64 and the largest subtracted first, so that a tiny temperature becomes greedy and not NaN.
    scores_v = logits_v.astype(np.float64)
    probability = np.exp((scores_v - scores_v.max()) / sampling.temperature)
    order = np.argsort(-probability, kind="stable")
    probability = probability[order] / probability.sum()
    if sampling.top_k:
        probability[sampling.top_k :] = 0
        probability /= probability.sum()
    # Nucleus sampling (Holtzman et al. 2020): what lies behind the first top_p of the mass is dropped; the first is always kept.
    if sampling.top_p < 1:
        probability[(probability.cumsum() - probability) >= sampling.top_p] = 0
    return int(order[random.choice(len(order), p=probability / probability.sum())])
