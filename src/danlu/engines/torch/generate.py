"""Token by token continuation of one prompt with a key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from danlu.engines.base import Sampling
from danlu.model.shape import ModelShape


class KeyValueCache:
    """Keys and values of sequences as long as each other, allocated once: (layers, rows, g, capacity, k) each.

    ``layers`` are those of this pipeline stage, and ``split`` is the number of tensor ranks that share the heads.
    """

    def __init__(
        self,
        shape: ModelShape,
        capacity: int,
        device: torch.device,
        layers: Iterable[int] | None = None,
        split: int = 1,
        rows: int = 1,
    ) -> None:
        self.place = {layer: place for place, layer in enumerate(range(shape.layers) if layers is None else layers)}
        size = (len(self.place), rows, shape.key_value_heads // split, capacity, shape.head_dim)
        self.keys = torch.empty(size, device=device)
        self.values = torch.empty(size, device=device)
        self.length = 0

    def extend(self, layer: int, key_bgtk: Tensor, value_bgtk: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions after the ones before; return all."""
        place, end = self.place[layer], self.length + key_bgtk.shape[2]
        self.keys[place, :, :, self.length : end] = key_bgtk
        self.values[place, :, :, self.length : end] = value_bgtk
        return self.keys[place, :, :, :end], self.values[place, :, :, :end]


def generate(
    logits: Callable[[Tensor], Tensor | None],
    share: Callable[[int], int],
    device: torch.device,
    tokens: list[int],
    new_tokens: int,
    sampling: Sampling,
    end_id: int | None,
) -> Iterator[int]:
    """Yield new tokens, new_tokens at most; stops before end_id.

    ``logits`` takes the tokens (1, t) that follow those before and returns the logits (v) after the last one, or None in a
    process that does not see them; ``share`` turns what was drawn here into the token that all processes go on with.
    """
    random = torch.Generator(device).manual_seed(sampling.seed)
    new = tokens
    for _ in range(new_tokens):
        with torch.no_grad():
            logits_v = logits(torch.tensor([new], device=device))
        token = share(0 if logits_v is None else _draw(logits_v, sampling, random))
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
