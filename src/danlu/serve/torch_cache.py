"""Keys and values of the torch executor: as they are, or in 8 bits with a scale for each token and head.

Shapes: s slots (blocks x `BLOCK`), n new tokens, l tokens that are read, g key/value heads, k head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from danlu.model.shape import ModelShape
from danlu.serve.executor import BLOCK, CacheType


class Store(Protocol):
    """The keys, or the values, of one layer."""

    def put(self, slots_n: Tensor, new_ngk: Tensor) -> None:
        """Keep them in these slots."""

    def get(self, slots_l: Tensor) -> Tensor:
        """What is in these slots, (l, g, k)."""

    def copy(self, source: int, target: int) -> None:
        """A block."""


class FloatStore:
    """As they are."""

    def __init__(self, slots: int, shape: ModelShape, device: torch.device) -> None:
        # Zeros, since what is masked is multiplied by zero, which NaN would survive.
        self.kept_sgk = torch.zeros(slots, shape.key_value_heads, shape.head_dim, device=device)

    def put(self, slots_n: Tensor, new_ngk: Tensor) -> None:
        """See the protocol."""
        self.kept_sgk[slots_n] = new_ngk

    def get(self, slots_l: Tensor) -> Tensor:
        """See the protocol."""
        return self.kept_sgk[slots_l]

    def copy(self, source: int, target: int) -> None:
        """See the protocol."""
        _copy(self.kept_sgk, source, target)


class Int8Store:
    """To the nearest of 255 steps up to the largest of the token's head, which is (k + 4) / 4 k of the bytes."""

    def __init__(self, slots: int, shape: ModelShape, device: torch.device) -> None:
        size = (slots, shape.key_value_heads, shape.head_dim)
        self.kept_sgk = torch.zeros(size, dtype=torch.int8, device=device)
        self.scales_sg1 = torch.zeros(*size[:2], 1, device=device)

    def put(self, slots_n: Tensor, new_ngk: Tensor) -> None:
        """See the protocol."""
        scale_ng1 = new_ngk.abs().amax(-1, keepdim=True) / 127
        self.kept_sgk[slots_n] = (new_ngk / scale_ng1.clamp(min=torch.finfo(torch.float32).tiny)).round().to(torch.int8)
        self.scales_sg1[slots_n] = scale_ng1

    def get(self, slots_l: Tensor) -> Tensor:
        """See the protocol."""
        return self.kept_sgk[slots_l] * self.scales_sg1[slots_l]

    def copy(self, source: int, target: int) -> None:
        """See the protocol."""
        _copy(self.kept_sgk, source, target)
        _copy(self.scales_sg1, source, target)


STORES: dict[CacheType, type[FloatStore] | type[Int8Store]] = {"float32": FloatStore, "int8": Int8Store}


def _copy(kept: Tensor, source: int, target: int) -> None:
    kept[target * BLOCK : (target + 1) * BLOCK] = kept[source * BLOCK : (source + 1) * BLOCK]
