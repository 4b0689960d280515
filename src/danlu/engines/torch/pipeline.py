"""Pipeline parallelism: consecutive layers on consecutive ranks.

The orders are 1F1B and interleaved (Narayanan et al. 2021), and zero-bubble (Qi et al. 2024, ZB1P with two stages a rank), which
computes the gradients of a stage's weights apart from those of its input, when there is nothing to wait for otherwise.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.tensor import DTensor

from danlu.engines.base import Batch
from danlu.engines.torch.decoder import Cache, CausalLM
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.pipeline_stage import Stage
from danlu.model.shape import ModelShape


def cut(whole: CausalLM, ranges: list[range], layout: Layout) -> list[CausalLM]:
    """This rank's stages of a model that has no storage yet; ``ranges`` are the layers of all stages."""
    return [_stage(whole, ranges, number) for number in range(layout.pipeline_rank, len(ranges), layout.pipeline)]


def _stage(whole: CausalLM, ranges: list[range], number: int) -> CausalLM:
    stage = copy.deepcopy(whole)
    for name in list(stage.model.layers):
        if int(name) not in ranges[number]:
            del stage.model.layers[name]
    if number > 0:
        stage.model.embed_tokens = None
    if number < len(ranges) - 1:
        stage.model.norm, stage.lm_head = None, None
    return stage


class Pipeline:
    """Runs this rank's stages through the micro-batches of a step."""

    def __init__(
        self, stages: list[CausalLM], shape: ModelShape, layout: Layout, schedule: str, micro_batches: int, device: torch.device
    ) -> None:
        self.stages, self.layout, self.width = stages, layout, shape.hidden_size
        self.total = layout.pipeline * len(stages)
        numbers = range(layout.pipeline_rank, self.total, layout.pipeline)
        self.first, self.last = numbers[0] == 0, numbers[-1] == self.total - 1
        group = layout.group("pipeline")
        self.wrapped: list[Any] = [
            Stage(stage, n, self.total, device, group=group) for stage, n in zip(stages, numbers, strict=True)
        ]
        # The stage that ends in the loss returns it; gradients are not divided, since every micro-batch carries its own weight.
        options: dict[str, Any] = {"loss_fn": lambda output, _target: output.sum(), "scale_grads": False}
        self.schedule: Any
        if schedule == "1f1b":
            self.schedule = Schedule1F1B(self.wrapped[0], micro_batches, **options)
        elif schedule == "interleaved":
            self.schedule = ScheduleInterleaved1F1B(self.wrapped, micro_batches, **options)
        else:
            self.schedule = ScheduleInterleavedZeroBubble(self.wrapped, micro_batches, **options)
        self.pair = _ends(layout) if stages[0].tied else None

    def run(self, batch: Batch, scale: float, train: bool) -> Tensor:
        """scale x the summed loss of the batch (rows, t), the same on every pipeline rank; with train, gradients too."""
        losses: list[Tensor] = []
        inputs = (batch["inputs"],) if self.first else ()
        kwargs = {
            "positions_bt": batch["positions"],
            "documents_bt": batch.get("documents"),
            "samples_b": batch.get("samples"),
            "targets_bt": batch["targets"] if self.last else None,
            "scale": scale,
        }
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        target = {"target": batch["targets"], "losses": losses} if self.last else {}
        step = self.schedule.step if train else self.schedule.eval
        step(*inputs, **target, **kwargs, return_outputs=False)
        total = torch.stack(losses).sum().detach() if self.last else torch.zeros((), device=batch["inputs"].device)
        self.layout.sum(total, "pipeline")
        return total

    def decode(self, tokens_bt: Tensor, cache: Cache) -> Tensor | None:
        """Logits (b, t, v) of tokens that follow those in the cache, on the last rank; None on the others."""
        assert len(self.stages) == 1, "with more stages a rank a token would come by twice"
        stage, rank, group = self.stages[0], self.layout.pipeline_rank, self.layout.group("pipeline")
        x_btd = tokens_bt
        if not self.first:
            x_btd = torch.empty((*tokens_bt.shape, self.width), device=tokens_bt.device)
            dist.recv(x_btd, group=group, group_src=rank - 1)
        made: Tensor = stage(x_btd, cache=cache)
        if self.last:
            return made
        dist.send(made.contiguous(), group=group, group_dst=rank + 1)
        return None

    def sum_tied_gradients(self) -> None:
        """The embeddings on the first and on the last rank are one parameter: both get the sum of the gradients."""
        if self.pair is None or not (self.first or self.last):
            return
        weight = self.stages[0].model.embed_tokens.weight if self.first else self.stages[-1].lm_head.weight  # type: ignore[union-attr]
        if not weight.requires_grad:  # frozen beside adapters
            return
        gradient = weight.grad
        assert gradient is not None
        if isinstance(gradient, DTensor) and isinstance(weight, DTensor):
            # The backward pass of a look-up may leave the gradient split in another way than its weight.
            weight.grad = gradient = gradient.redistribute(placements=weight.placements)
        dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=self.pair)


def _ends(layout: Layout) -> dist.ProcessGroup | None:
    """The group of the first and the last pipeline rank with this process's place in the other dimensions."""
    assert layout.mesh is not None
    mine = None
    table = layout.mesh.mesh.reshape(layout.pipeline, -1)
    for column in range(table.shape[1]):
        ranks = [int(table[0, column]), int(table[-1, column])]
        group = dist.new_group(ranks)  # every process makes every group, in one order
        if dist.get_rank() in ranks:
            mine = group
    return mine
