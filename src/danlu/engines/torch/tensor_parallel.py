"""Tensor parallelism (Shoeybi et al. 2019) and sequence parallelism (Korthikanti et al. 2022), as DTensor plans.

Queries, keys, values, gate and up are split by columns; output and down by rows, whose sum is the one communication of each half
of a block. With sequence parallelism the residual stream between them is split along the sequence, norms included.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.loss import VocabularyShard

_HEADS = 2
"""Dimension of the heads in (b, t, h, k): each tensor rank norms its own heads, and the norm's gradient is summed over them."""


def apply(model: CausalLM, mesh: DeviceMesh, sequence_parallel: bool, qk_norm: bool) -> None:
    """Split the parameters of this stage in place."""
    stream = Shard(1) if sequence_parallel else Replicate()
    ends: dict[str, Any] = {}
    if model.model.embed_tokens is not None:
        ends["embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if model.model.norm is not None and sequence_parallel:
        ends["norm"] = SequenceParallel(use_local_output=True)
    _split(model.model, mesh, ends)
    for block in model.model.layers.values():
        plan: dict[str, Any] = {
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=stream),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=stream),
        }
        if qk_norm:
            for name in ("q_norm", "k_norm"):
                plan[f"self_attn.{name}"] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        if sequence_parallel:
            plan["input_layernorm"] = plan["post_attention_layernorm"] = SequenceParallel(use_local_output=True)
            plan["self_attn"] = PrepareModuleInput(
                input_layouts=(Shard(1), None, None, None),
                desired_input_layouts=(Replicate(), None, None, None),
                use_local_output=True,
            )
            plan["mlp"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
            )
        _split(block, mesh, plan)
    if model.lm_head is not None:
        _split(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
        model.vocabulary = VocabularyShard(mesh, sequence_parallel)


def _split(module: nn.Module, mesh: DeviceMesh, plan: dict[str, Any]) -> None:
    parallelize_module(module, mesh, plan)
