"""Data parallelism and ZeRO (Rajbhandari et al. 2020) with FSDP2: replicas are shards of one piece.

Stage 0 keeps everything on every rank. 1 splits the optimizer states: gradients are summed as a whole over the micro-batches and
split once. 2 splits the gradients too: each micro-batch's are split at once. 3 also splits the parameters between uses.
"""

from __future__ import annotations

from torch.distributed.fsdp import FSDPModule, fully_shard

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.layout import Layout


def apply(model: CausalLM, layout: Layout, zero_stage: int) -> None:
    """Split the parameters of each layer, and of the ends together, over the data-parallel ranks."""
    mesh = layout.submesh("replicate", "shard")
    for block in model.model.layers.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=zero_stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def synchronise(model: CausalLM, now: bool) -> None:
    """Whether the next backward pass reduces gradients over the data-parallel ranks."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
