"""Pipeline parallelism: consecutive layers on consecutive ranks, in Fleet's orders.

These are 1F1B and interleaved (Narayanan et al. 2021).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

from danlu.engines.paddle.decoder import Cache, CausalLM
from danlu.engines.paddle.fully_sharded import give_gradient, gradient, whole
from danlu.engines.paddle.layout import Layout
from danlu.model.shape import ModelShape

Micro = dict[str, Tensor]
"""What there is of a micro-batch, by name."""


class Stage(nn.Layer):
    """A stage as Fleet wants it: from one tensor to the next. What else a micro-batch has, every rank has by itself."""

    def __init__(self, build: Callable[[int], CausalLM], number: int) -> None:
        super().__init__()
        self.part = build(number)
        self.coming: Iterator[Micro] = iter(())
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states to hidden states (b, t, d); tokens at the beginning, scale x the summed loss at the end."""
        micro = next(self.coming)
        positions = micro["positions"] if "positions" in micro else paddle.arange(micro["inputs"].shape[1])[None]
        last = self.part.model.norm is not None
        return self.part(
            x,
            positions,
            micro.get("documents"),
            targets_bt=micro["targets"] if last else None,
            scale=self.scale,
            samples_b=micro.get("samples"),
        )


class Pipeline:
    """Runs this rank's stages through the micro-batches of a step."""

    def __init__(self, build: Callable[[int], CausalLM], stages_a_rank: int, shape: ModelShape, layout: Layout) -> None:
        self.layout, self.width, total = layout, shape.hidden_size, layout.pipeline * stages_a_rank
        warnings.filterwarnings("ignore", "No shared comm")  # tied embeddings are summed here
        layers = PipelineLayer(
            [LayerDesc(Stage, build, number) for number in range(total)],
            topology=layout.hcg.topology(),
            loss_fn=lambda loss, _labels: loss,
            seg_method=f"layer:{Stage.__name__}",
            num_virtual_pipeline_stages=stages_a_rank if stages_a_rank > 1 else None,
        )
        self.wrapped = [layer for layer in layers.sublayers() if isinstance(layer, Stage)]
        self.first, self.last = layout.pipeline_rank == 0, layout.pipeline_rank == layout.pipeline - 1
        self.schedule = fleet.distributed_model(layers)
        self.trains: bool | None = None
        """Whether the last run did."""
        self.pair = _ends(layout) if shape.tied_embeddings else None

    @property
    def stages(self) -> list[CausalLM]:
        """This rank's."""
        return [stage.part for stage in self.wrapped]

    def run(self, micro_batches: list[Micro], scale: float, train: bool) -> Tensor:
        """scale x the summed loss of the micro-batches, the same on every pipeline rank; with train, gradients too."""
        for stage in self.wrapped:
            stage.coming, stage.scale = iter(micro_batches), scale
        data = iter([(micro["inputs"], None) for micro in micro_batches])
        if train is not self.trains:
            # Neighbours tell each other once what comes, and whether it gets gradients: what comes in evaluation gets none.
            self.schedule._p2p_helper.clear_meta_cache()
            self.trains = train
        usual, self.schedule.accumulate_steps = self.schedule.accumulate_steps, len(micro_batches)
        if train:
            self.schedule.train()
            mean = self.schedule.forward_backward_pipeline(data, None)
        else:
            mean = self.schedule.eval_batch(data, compute_loss=True)
        self.schedule.accumulate_steps = usual
        return mean.reshape([]) * len(micro_batches)

    def decode(self, tokens_bt: Tensor, cache: Cache) -> Tensor | None:
        """Logits (b, t, v) of tokens that follow those in the cache, on the last rank; None on the others."""
        assert len(self.wrapped) == 1, "with more stages a rank a token would come by twice"
        ranks, rank = self.layout.group("pipeline").ranks, self.layout.pipeline_rank
        x_btd = tokens_bt
        if not self.first:
            x_btd = paddle.empty([*tokens_bt.shape, self.width])
            dist.recv(x_btd, ranks[rank - 1], group=self.layout.group("pipeline"))
        made = self.stages[0](x_btd, cache=cache)
        if self.last:
            return made
        dist.send(made.contiguous(), ranks[rank + 1], group=self.layout.group("pipeline"))
        return None

    @paddle.no_grad()
    def sum_tied_gradients(self) -> None:
        """The embeddings on the first and on the last rank are one parameter: both get the sum of the gradients."""
        if self.pair is None or not (self.first or self.last):
            return
        weight = self.stages[0].model.embed_tokens.weight if self.first else self.stages[-1].lm_head.weight
        if weight.stop_gradient:
            return
        made = whole(weight, self.layout, gradient(weight))
        gradient_vd = made if self.first else made.T.contiguous()
        dist.all_reduce(gradient_vd, group=self.pair)
        give_gradient(weight, gradient_vd if self.first else gradient_vd.T.contiguous(), self.layout)


def _ends(layout: Layout) -> Any:
    """The group of the first and the last pipeline rank with this process's place in the other dimensions."""
    mine = None
    for ranks in layout.hcg.topology().get_comm_list("pipe"):
        group = dist.new_group([ranks[0], ranks[-1]])  # every process makes every group, in one order
        if dist.get_rank() in (ranks[0], ranks[-1]):
            mine = group
    return mine
