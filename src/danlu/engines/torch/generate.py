"""Token by token continuation of one prompt with a key/value cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from danlu.engines.base import Sampling
from danlu.engines.torch.decoder import CausalLM
from danlu.model.shape import ModelShape


class KeyValueCache:
    """Keys and values of one sequence, allocated once: (layers, 1, g, capacity, k) each."""

    def __init__(self, shape: ModelShape, capacity: int, device: torch.device) -> None:
        size = (shape.layers, 1, shape.key_value_heads, capacity, shape.head_dim)
        self.keys = torch.empty(size, device=device)
        self.values = torch.empty(size, device=device)
        self.length = 0

    def extend(self, layer: int, key_bgtk: Tensor, value_bgtk: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions after the ones before; return all."""
        end = self.length + key_bgtk.shape[2]
        self.keys[layer, :, :, self.length : end] = key_bgtk
        self.values[layer, :, :, self.length : end] = value_bgtk
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


@torch.no_grad()
def generate(model: CausalLM, shape: ModelShape, tokens: list[int], sampling: Sampling, end_id: int | None) -> Iterator[int]:
    """Yield the new tokens in FP32; stops before end_id, at max_tokens, or where the context is full."""
    device = model.device
    random = torch.Generator(device).manual_seed(sampling.seed)
    capacity = min(len(tokens) + sampling.max_tokens, shape.max_sequence_length)
    cache = KeyValueCache(shape, capacity, device)
    new = tokens
    for _ in range(capacity - len(tokens)):
        logits_v = model(torch.tensor([new], device=device), cache=cache)[0, -1]
        token = _draw(logits_v, sampling, random)
        if token == end_id:
            return
        yield token
        new = [token]


def _draw(logits_v: Tensor, sampling: Sampling, random: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits_v.argmax())
    # FP64 and the largest subtracted first, so that a tiny temperature becomes greedy and not NaN.
    scores_v = logits_v.double()
    probability, order = torch.softmax((scores_v - scores_v.max()) / sampling.temperature, -1).sort(descending=True)
    if sampling.top_k:
        probability[sampling.top_k :] = 0
        probability /= probability.sum()
    # Nucleus sampling (Holtzman et al. 2020): what lies behind the first top_p of the mass is dropped; the first is always kept.
    if sampling.top_p < 1:
        probability[(probability.cumsum(-1) - probability) >= sampling.top_p] = 0
    return int(order[torch.multinomial(probability, 1, generator=random)])
