"""Data parallelism and ZeRO (Rajbhandari et al. 2020) with FSDP2: replicas are shards of one piece.

Stage 0 keeps everything on every rank. 1 splits the optimizer states: gradients are summed as a whole over the micro-batches and
split once. 2 splits the gradients too: each micro-batch's are split at once. 3 also splits the parameters between uses.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.layout import Layout


def apply(model: CausalLM, layout: Layout, zero_stage: int, on_host: bool) -> None:
    """Split the parameters of each layer, and of the ends together, over the data-parallel ranks.

    With on_host, the shards and their gradients are in host memory, and a GPU gets a copy of each layer when it needs it.
    """
    mesh = layout.submesh("replicate", "shard")
    policy = CPUOffloadPolicy(pin_memory=False) if on_host and mesh.device_type != "cpu" else OffloadPolicy()
    for block in model.model.layers.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=zero_stage == 3, offload_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=False, offload_policy=policy)


def split(model: nn.Module) -> Iterator[FSDPParam]:
    """FSDP's account of every parameter that it splits; torch's own memory tracker reads them too."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def use_replicas_in_place(model: nn.Module) -> None:
    """Without shards the whole parameter is at hand; FSDP would compute with a copy of it, as large as the model.

    To be called once the parameters have storage.
    """
    for parameter in split(model):
        if parameter.shard_mesh.size() == 1:
            parameter.all_gather_outputs = [parameter._sharded_param_data]
            parameter.free_unsharded_param = lambda: None  # type: ignore[method-assign]


def synchronise(model: CausalLM, now: bool) -> None:
    """Whether the next backward pass reduces gradients over the data-parallel ranks."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
