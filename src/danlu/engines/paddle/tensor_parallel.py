"""Tensor parallelism (Shoeybi et al. 2019) with Fleet's layers.

Queries, keys, values, gate and up are split by columns; output and down by rows, whose sum is the one communication of each half
of a block. The vocabulary is filled up to a multiple of the tensor ranks; what is filled in stays zero.
"""

from __future__ import annotations

from typing import Any

from paddle import nn
from paddle.distributed.fleet.meta_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.vocabulary import VocabularyShard
from danlu.model.shape import ModelShape

_COLUMNS, _ROWS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}, ("o_proj", "down_proj")


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
