"""What data-parallel ranks do with gradients: replicas average them, and with sharding (ZeRO, Rajbhandari et al. 2020) each
parameter belongs to one of them, which alone gets its averaged gradient, keeps its moments, updates it and sends it around.
With ZeRO 3 each has a part of every parameter instead, and danlu.engines.paddle.fully_sharded brings their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import DygraphShardingOptimizer
from paddle.distributed.fleet.utils.hybrid_parallel_util import (
    fused_allreduce_gradients,
    fused_allreduce_gradients_with_group,
)

from danlu.engines.paddle.fully_sharded import split_update
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.pieces import split_dimension
from danlu.model.adapters import is_adapter
from danlu.model.drawing import HEAD

_OF_HEADS = ("q_norm.weight", "k_norm.weight")
_OF_SEQUENCE = ("norm.weight", "o_proj.bias", "down_proj.bias")
"""Sequence parallelism shows each tensor rank a part of the sequence there, and in the half of an adapter that is not split."""


class _Split(DygraphShardingOptimizer):
    """Fleet's, but with parameters sent around also where the rank that receives them has no gradient of them (ZeRO 2)."""

    @paddle.no_grad()
    def _sharding_sync_parameters(self) -> None:
        group = self._hcg.get_sharding_parallel_group()
        for rank, parameters in self._rank2params.items():
            for parameter in parameters:
                dist.broadcast(parameter, src=group.ranks[rank], group=group)


class Reducer:
    """Knows which parameters are updated here, and brings their gradients here."""

    def __init__(self, parameters: Mapping[str, Tensor], layout: Layout, tied: bool) -> None:
        self.parameters, self.layout = dict(parameters), layout
        self.updated = set(parameters)
        """The names of those that this process updates."""
        self.tied_copy = layout.pipeline > 1 and tied
        """Whether an output embedding here is a second copy of the first rank's embedding, which alone is counted."""
        self.kept: dict[str, Tensor] = {}
        """Gradients of the micro-batches so far, with ZeRO 2."""
        self.splits: list[_Split] = []

    @property
    def counted(self) -> list[str]:
        """Those whose gradients this process counts into the norm: of what tensor ranks have alike, the first one does."""
        return [
            name
            for name in self.parameters
            if name in self.updated
            and not (self.tied_copy and name == HEAD)
            and (self.layout.tensor_rank == 0 or split_dimension(name) is not None)
        ]

    @property
    def owners(self) -> bool:
        """Whether each parameter is updated by one data rank, and not by all or in part by each."""
        return self.layout.zero_stage in (1, 2)

    @property
    def copies(self) -> int:
        """How many processes count the same gradient into the norm."""
        return 1 if self.layout.zero_stage else self.layout.data

    def split(self, adamw: Any) -> Any:
        """What makes a step with an AdamW: with sharding, of this rank's share of its parameters."""
        if self.layout.zero_stage == 3:
            split_update(adamw)
        if not self.owners:
            return adamw
        names = {parameter.name: name for name, parameter in self.parameters.items()}
        whole = [names[parameter.name] for parameter in adamw._parameter_list]
        split = _Split(adamw, self.layout.hcg)
        own = {names[parameter.name] for parameter in adamw._parameter_list}
        self.updated -= set(whole) - own
        self.splits.append(split)
        return split

    @paddle.no_grad()
    def micro_batch_done(self) -> None:
        """A backward pass has ended: with ZeRO 2, gradients stay on the rank that updates the parameter only."""
        if self.layout.zero_stage != 2:
            return
        self._bring()
        for name, parameter in self.parameters.items():
            if name in self.updated:
                self.kept[name] = self.kept[name].add_(parameter.grad) if name in self.kept else parameter.grad.clone()
            parameter.clear_gradient(set_to_zero=False)

    def _bring(self) -> None:
        """Average the gradients over the data ranks, where this one needs them."""
        if self.layout.tensor > 1 and not self.layout.auto:  # which has summed them already
            self._sum_over_tensor_ranks()
        for split in self.splits:
            split.reduce_gradients(split._parameter_list, self.layout.hcg)

    def _sum_over_tensor_ranks(self) -> None:
        """Gradients of what all tensor ranks have, but of which each saw a part: of the heads, or of the sequence."""
        split = self.layout.sequence_parallel
        seen = _OF_SEQUENCE if split else _OF_HEADS
        parts = [
            parameter
            for name, parameter in self.parameters.items()
            if name.endswith(seen) or (split and is_adapter(name) and split_dimension(name) is None)
        ]
        if self.layout.zero_stage == 3:
            for parameter in parts:
                dist.all_reduce(parameter.bw_storage, group=self.layout.group("tensor"))
        elif parts:
            fused_allreduce_gradients_with_group(parts, self.layout.group("tensor"), scale=1.0)

    def reduce(self) -> None:
        """Average the gradients of a step over the data ranks, where this one needs them."""
        if self.layout.zero_stage == 2:
            for name, gradient in self.kept.items():
                self.parameters[name].grad = gradient
            self.kept = {}
            return
        self._bring()
        if self.layout.data > 1 and not self.layout.zero_stage:
            fused_allreduce_gradients(list(self.parameters.values()), self.layout.hcg)
