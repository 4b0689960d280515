"""ZeRO 3 (Rajbhandari et al. 2020) with Fleet's FullyShard: data ranks split every parameter.

They gather those of a layer when it computes. A rank keeps a run of the entries of each parameter, flattened as paddle has it and
filled up with zeros. It hangs on the parameter, and so does its gradient; the parameter itself is empty in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_fully_shard import FullyShard, FullyShardOptimizer
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage3 import _release_param

from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.layout import Layout


def split(stages: Iterable[CausalLM]) -> None:
    """Let go of what other data ranks keep of these stages."""
    for stage in stages:
        if stage.head is not None:
            stage.extra_parameters = [stage.head]  # used in the stage's own forward pass, and not in that of its layer
        made = FullyShard(stage, device=_device(), segment_size=0, sync_comm=True, pretrain_sync_models=False)
        for block in stage.model.layers.values():
            _free_behind(made, block, block.parameters())
        if stage.model.norm is not None:
            _free_behind(made, stage.model.norm, [stage.model.norm.weight, stage.head])


def _free_behind(made: FullyShard, module: nn.Layer, parameters: Iterable[Tensor]) -> None:
    """Let go of frozen parameters in the backward pass of a module: FullyShard waits for their gradients, which never come."""
    if frozen := [parameter for parameter in parameters if parameter.stop_gradient]:
        module.register_forward_pre_hook(
            lambda _, inputs: (_FreeBehind.apply(inputs[0], partial(_free, made, frozen)), *inputs[1:])
        )


def _free(made: FullyShard, parameters: list[Tensor]) -> None:
    gathered = [parameter for parameter in parameters if parameter.status == "all"]
    for parameter in gathered:
        parameter.use_count = 1  # of Fleet's count, the last
    _release_param(gathered, made._param2buffer, made._rank, made._task_flow)


class _FreeBehind(PyLayer):
    """The same tensor; something is done when its gradient is known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, free: Callable[[], None]) -> Tensor:
        ctx.free = free
        return paddle.assign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.free()
        return gradient


def split_update(adamw: Any) -> None:
    """Make an AdamW of split parameters step on the entries that are here."""
    for parameter in adamw._parameter_list:
        parameter._need_shard = True  # FullyShard's mark, which the first of its optimizers takes away
    FullyShardOptimizer(adamw, device=_device(), segment_size=0)


def _device() -> str:
    """Its kind, by which Fleet aligns."""
    return str(paddle.get_device()).partition(":")[0]


def is_split(parameter: Tensor) -> bool:
    """Whether data ranks split it."""
    return hasattr(parameter, "fw_storage")


def own_span(parameter: Tensor, layout: Layout) -> slice:
    """Which entries of the flattened parameter are here; none, where all that is here is filling."""
    total = math.prod(parameter.shape)
    if not is_split(parameter):
        return slice(0, total)
    size = parameter.fw_storage.shape[0]
    return slice(min(layout.data_rank * size, total), min((layout.data_rank + 1) * size, total))


def held(parameter: Tensor, layout: Layout, of: Tensor | None = None) -> Tensor:
    """What is here of a parameter, or ``of`` its gradient or a moment: all of it, or its own entries, flat."""
    if not is_split(parameter):
        return parameter if of is None else of
    span = own_span(parameter, layout)
    return (parameter.fw_storage if of is None else of)[: span.stop - span.start]


def whole(parameter: Tensor, layout: Layout, of: Tensor | None = None) -> Tensor:
    """All of a parameter, or ``of`` a moment or a gradient as this rank keeps it; all data ranks call."""
    if not is_split(parameter):
        return parameter if of is None else of
    parts: list[Tensor] = []
    dist.all_gather(parts, (parameter.fw_storage if of is None else of).detach(), group=layout.group("data"))
    return paddle.concat(parts)[: math.prod(parameter.shape)].reshape(parameter.shape)


def gradient(parameter: Tensor) -> Tensor | None:
    """As this rank keeps it; where the parameter is split, it is averaged over the data ranks, and its filling is zero."""
    return parameter.bw_storage if is_split(parameter) else parameter.grad


def give_gradient(parameter: Tensor, whole: Tensor, layout: Layout) -> None:
    """Keep a gradient of all of the parameter, or the own entries of it."""
    if is_split(parameter):
        span = own_span(parameter, layout)
        run = whole.flatten()[span.start : span.stop]
        parameter.bw_storage = F.pad(run, [0, parameter.fw_storage.shape[0] - run.shape[0]])
    else:
        parameter.grad = whole


def free_gradient(parameter: Tensor) -> None:
    """Let go of it."""
    if is_split(parameter):
        parameter.bw_storage = None
        parameter.fw_storage.clear_gradient(False)
    else:
        parameter.clear_gradient(False)


def kept_name(parameter: Tensor) -> str:
    """Paddle's name of what the optimizer updates."""
    return f"slice@{parameter.name}" if is_split(parameter) else str(parameter.name)
