"""Recomputation of activations in the backward pass (Chen et al. 2016; selective: Korthikanti et al. 2022)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from danlu.engines.torch.decoder import CausalLM

_aten = torch.ops.aten
_DEAR = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}
"""Matrix products and attention, whose outputs selective recomputation keeps; what is made anew is memory-bound."""


def _policy(_context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _DEAR else CheckpointPolicy.PREFER_RECOMPUTE


def apply(model: CausalLM, mode: str, every: int) -> None:
    """Make every n-th layer keep only its input (full), or its input and its dear outputs (selective)."""
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for name, block in model.model.layers.items():
        if int(name) % every == 0:
            block.forward = partial(checkpoint, block.forward, **options)
