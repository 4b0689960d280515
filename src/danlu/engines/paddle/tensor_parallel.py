"""Tensor parallelism (Shoeybi et al. 2019) with Fleet's layers, or those of its sequence parallelism.

Queries, keys, values, gate and up are split by columns; output and down by rows, whose sum is the one communication of each half
of a block. The vocabulary is filled up to a multiple of the tensor ranks; what is filled in stays zero.
"""

from __future__ import annotations

from typing import Any

from paddle import nn
from paddle.distributed.fleet.meta_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

from danlu.engines.paddle import sequence_parallel
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.vocabulary import VocabularyShard
from danlu.model.shape import ModelShape

_COLUMNS, _ROWS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}, ("o_proj", "down_proj")
_PLAIN: tuple[Any, Any, Any] = ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
_SEQUENCE: tuple[Any, Any, Any] = sequence_parallel.ColumnLinear, sequence_parallel.RowLinear, sequence_parallel.Embedding


def apply(model: CausalLM, shape: ModelShape, layout: Layout, split_sequence: bool) -> None:
    """Put Fleet's layers in the place of this stage's."""
    columns, rows, embedding = _SEQUENCE if split_sequence else _PLAIN
    filled = layout.tensor * -(-shape.vocab_size // layout.tensor)
    if model.model.embed_tokens is not None:
        model.model.embed_tokens = embedding(filled, shape.hidden_size)
    for block in model.model.layers.values():
        for half, names in _COLUMNS.items():
            for name in names:
                _replace(getattr(block, half), name, columns, gather_output=False)
        _replace(block.self_attn, _ROWS[0], rows, input_is_parallel=True)
        _replace(block.mlp, _ROWS[1], rows, input_is_parallel=True)
    if model.lm_head is not None:
        model.lm_head = ColumnParallelLinear(shape.hidden_size, filled, has_bias=False, gather_output=False)
    if model.model.norm is not None:
        if split_sequence:
            model.model.norm.register_forward_post_hook(sequence_parallel.gather)
        model.vocabulary = VocabularyShard(layout, shape.vocab_size)


def _replace(module: nn.Layer, name: str, layer: Any, **options: Any) -> None:
    old = getattr(module, name)
    setattr(module, name, layer(*old.weight.shape, has_bias=old.bias is not None, **options))
