"""Tensor parallelism (Shoeybi et al. 2019) with Fleet's layers.

Queries, keys, values, gate and up are split by columns; output and down by rows, whose sum is the one communication of each half
of a block. The vocabulary is filled up to a multiple of the tensor ranks; what is filled in stays zero.
"""

from __future__ import annotations

from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.layout import Layout
from danlu.model.shape import ModelShape

_COLUMNS, _ROWS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}, ("o_proj", "down_proj")


class VocabularyShard:
    """This rank's part of the output embedding."""

    def __init__(self, layout: Layout, size: int) -> None:
        self.group, self.size = layout.group("tensor"), size
        self.rows = -(-size // layout.tensor)
        self.first = layout.tensor_rank * self.rows
        self.real = min(max(0, size - self.first), self.rows)
        """Those of the rows here that are no filling."""

    def cross_entropy(self, logits_nv: Tensor, index_n1: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
        """This part of the softmax over the whole vocabulary, and the loss (n, 1), 0 where the index is ``ignored``."""
        loss, softmax = mp_ops._c_softmax_with_cross_entropy(
            self._filled(logits_nv, float("-inf")), index_n1, group=self.group, return_softmax=True, ignore_index=ignored
        )
        return self._filled(softmax, 0.0), loss  # paddle's exp(-inf) on CPUs is 1e-38

    def local(self, index_n1: Tensor) -> tuple[Tensor, Tensor]:
        """The row here of each index, and whether it is here."""
        row = index_n1 - self.first
        return row.clip(0, self.rows - 1), ((row >= 0) & (row < self.rows)).astype("float32")

    def sum(self, value: Tensor) -> Tensor:
        """Over the parts of the vocabulary."""
        dist.all_reduce(value, group=self.group)
        return value

    def whole(self, logits_btv: Tensor) -> Tensor:
        """The logits of all parts."""
        parts: list[Tensor] = []
        dist.all_gather(parts, logits_btv.contiguous(), group=self.group)
        return paddle.concat(parts, axis=-1)[..., : self.size]

    def _filled(self, values_nv: Tensor, value: float) -> Tensor:
        """With ``value`` for the rows that fill the vocabulary up."""
        if self.real == self.rows:
            return values_nv
        return paddle.where(paddle.arange(self.rows) < self.real, values_nv, paddle.full_like(values_nv, value))


def apply(model: CausalLM, shape: ModelShape, layout: Layout) -> None:
    """Put Fleet's layers in the place of this stage's."""
    filled = layout.tensor * -(-shape.vocab_size // layout.tensor)
    if model.model.embed_tokens is not None:
        model.model.embed_tokens = VocabParallelEmbedding(filled, shape.hidden_size)
    for block in model.model.layers.values():
        for half, names in _COLUMNS.items():
            for name in names:
                _replace(getattr(block, half), name, ColumnParallelLinear, gather_output=False)
        _replace(block.self_attn, _ROWS[0], RowParallelLinear, input_is_parallel=True)
        _replace(block.mlp, _ROWS[1], RowParallelLinear, input_is_parallel=True)
    if model.lm_head is not None:
        model.lm_head = ColumnParallelLinear(shape.hidden_size, filled, has_bias=False, gather_output=False)
    if model.model.norm is not None:
        model.vocabulary = VocabularyShard(layout, shape.vocab_size)


def _replace(module: nn.Layer, name: str, layer: Any, **options: Any) -> None:
    old = getattr(module, name)
    setattr(module, name, layer(*old.weight.shape, has_bias=old.bias is not None, **options))
