"""Mistakes that parallel training invites, planted one at a time: the matrix must catch each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.tensor import DTensor

from danlu.engines.torch import engine, loss, offload, parallelise, pipeline, recompute, tensor_parallel
from danlu.engines.torch.dropout import Dropout
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.loss import IGNORED, VocabularyShard
from danlu.engines.torch.offload import Shelf
from danlu.engines.torch.optimizer import Optimizer
from danlu.engines.torch.pieces import local
from danlu.engines.torch.pipeline import Pipeline

Plant = Callable[[], AbstractContextManager[Any]]


class _Silent:
    """torch.distributed, but some all-reduces leave everybody with his own."""

    def __init__(self, silenced: Callable[[torch.Tensor], bool]) -> None:
        self.silenced = silenced

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        return None if self.silenced(tensor) else dist.all_reduce(tensor, *arguments, **named)


def _without_all_reduce(module: Any, silenced: Callable[[torch.Tensor], bool] = lambda _: True) -> Plant:
    return lambda: patch.object(module, "dist", _Silent(silenced))


def _mean_of_means() -> AbstractContextManager[Any]:
    """Each micro-batch counts the same, however many tokens it supervises."""
    honest = TorchEngine._loss

    def wrong(self: TorchEngine, batch: Any, _scale: float, criterion: Any) -> torch.Tensor:
        supervised = max(1, int((batch["targets"] != IGNORED).sum()))
        return honest(self, batch, 1 / (supervised * self.recipe.accumulation), criterion)

    return patch.object(TorchEngine, "_loss", wrong)


def _own_count() -> AbstractContextManager[Any]:
    """Each data rank divides by its own supervised tokens."""
    honest = Layout.sum

    def wrong(self: Layout, value: torch.Tensor, *names: str) -> torch.Tensor:
        return value * self.data if not value.is_floating_point() else honest(self, value, *names)

    return patch.object(Layout, "sum", wrong)


@contextmanager
def _norms_not_reduced() -> Iterator[None]:
    """Norms see their part of the sequence as if it were all there is, and keep the gradient of that part."""
    with (
        patch.object(tensor_parallel, "SequenceParallel", lambda **_: None),
        patch.object(tensor_parallel, "_split", _split_without_norms),
    ):
        yield


_honest_split = tensor_parallel._split


def _split_without_norms(module: nn.Module, mesh: Any, plan: dict[str, Any]) -> None:
    _honest_split(module, mesh, {name: style for name, style in plan.items() if style is not None})


def _local_norm() -> AbstractContextManager[Any]:
    def wrong(self: Optimizer) -> float:
        pieces = [parameter.grad for parameter in self.counted if parameter.grad is not None]
        local = [piece.to_local() if isinstance(piece, DTensor) else piece for piece in pieces]
        return math.sqrt(sum(float(piece.square().sum()) for piece in local))

    return patch.object(Optimizer, "_global_norm", wrong)


def _layer_twice() -> AbstractContextManager[Any]:
    """The first stage ends a layer too late: two stages have it."""
    honest = engine.split_layers

    def wrong(shape: Any, stages: int) -> list[range]:
        first, *rest = honest(shape, stages)
        return [range(first.start, first.stop + 1), *rest]

    return patch.object(engine, "split_layers", wrong)


def _first_row() -> AbstractContextManager[Any]:
    honest = VocabularyShard.first_row
    return patch.object(VocabularyShard, "first_row", lambda self, vocabulary: honest(self, vocabulary) + 1)


def _looks_across() -> AbstractContextManager[Any]:
    """The last data rank attends over the border of documents."""
    honest = TorchEngine._placed

    def wrong(self: TorchEngine, batch: Any) -> dict[str, torch.Tensor]:
        last = self.data_rank == self.layout.data - 1
        return honest(self, {name: tensor for name, tensor in batch.items() if name != "documents" or not last})

    return patch.object(TorchEngine, "_placed", wrong)


def _same_slice() -> AbstractContextManager[Any]:
    return patch.object(Layout, "data_rank", property(lambda _: 0))


def _same_masks() -> AbstractContextManager[Any]:
    """Dropout goes by the place of a sample in the rank's own slice, as if each rank drew from one seed."""
    honest = TorchEngine._placed

    def wrong(self: TorchEngine, batch: Any) -> dict[str, torch.Tensor]:
        before = self.data_rank * self.recipe.train.global_batch // self.layout.data
        return honest(self, {**batch, "samples": batch["samples"] - before} if "samples" in batch else batch)

    return patch.object(TorchEngine, "_placed", wrong)


def _same_masks_along_the_sequence() -> AbstractContextManager[Any]:
    """Each part of a split sequence takes itself for the first."""
    return patch.object(parallelise, "Dropout", lambda rate, _part: Dropout(rate))


def _other_mask_when_recomputed() -> AbstractContextManager[Any]:
    honest = Dropout.keep

    def wrong(self: Dropout, keys_bt: torch.Tensor, half: int, d: int) -> torch.Tensor:
        return honest(self, keys_bt, half + 2 * (torch._C._current_graph_task_id() != -1), d)

    return patch.object(Dropout, "keep", wrong)


def _own_tokens() -> AbstractContextManager[Any]:
    """Each process goes on with what it drew itself."""
    return patch.object(Layout, "tell", lambda _self, number: number)


def _averaged_micro_batches() -> AbstractContextManager[Any]:
    """The schedule divides gradients by the micro-batches, which the weight of each has in it already."""
    return patch.object(
        pipeline, "Schedule1F1B", lambda *arguments, **named: Schedule1F1B(*arguments, **{**named, "scale_grads": True})
    )


def _one_rank_forgets_to_step() -> AbstractContextManager[Any]:
    """A replica that drifts away: the last data rank has another learning rate."""
    honest = Optimizer.step

    def wrong(self: Optimizer, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        return honest(self, learning_rate * (1 + 0.01 * self.layout.data_rank), loss_is_finite)

    return patch.object(Optimizer, "step", wrong)


def _reads_dropped_state() -> AbstractContextManager[Any]:
    """Recomputation from a rounded input."""
    honest = recompute.checkpoint

    def wrong(function: Any, x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        def rounding(x: torch.Tensor, *rest: Any) -> Any:
            again = torch._C._current_graph_task_id() != -1
            return function(x.bfloat16().float() if again else x, *rest)

        return honest(rounding, x, *arguments, **options)

    return patch.object(recompute, "checkpoint", wrong)


FAULTS: dict[str, tuple[str, Plant]] = {
    "gradients are not reduced over the replicas": ("d2", _without_all_reduce(_fsdp_collectives)),
    "every micro-batch counts the same": ("d2 mb1", _mean_of_means),
    "each data rank divides by its own tokens": ("d2", _own_count),
    "the schedule averages the micro-batches": ("p2 mb2", _averaged_micro_batches),
    "norm weights are not reduced under sequence parallelism": ("t2 sp", _norms_not_reduced),
    "clipping by the local norm": ("d2 z1", _local_norm),
    "clipping by the norm of one pipeline rank": ("p2 mb2", _local_norm),
    "tied weights come apart": ("p2 mb2 tied", lambda: patch.object(Pipeline, "sum_tied_gradients", lambda self: None)),
    "a stage ends a layer too late": ("p2 mb2", _layer_twice),
    "the vocabulary's second part begins a row too late": ("t2", _first_row),
    "the loss sums over its own part of the vocabulary": (
        "t2",
        _without_all_reduce(loss, lambda tensor: tensor.shape[-1] == 2),
    ),
    "hidden gradients of the vocabulary's parts are not summed": (
        "t2",
        _without_all_reduce(loss, lambda tensor: tensor.shape[-1] == 32),
    ),
    "one rank attends over the border of documents": ("d2", _looks_across),
    "all data ranks train on the same samples": ("d2", _same_slice),
    "all data ranks draw the same dropout masks": ("d2 drop", _same_masks),
    "all parts of the sequence draw the same dropout masks": ("t2 sp drop", _same_masks_along_the_sequence),
    "recomputation draws other dropout masks": ("p2 mb4 drop full", _other_mask_when_recomputed),
    "pipeline ranks go on with different tokens": ("p2 mb4", _own_tokens),
    "one replica has another learning rate": ("d2", _one_rank_forgets_to_step),
    "moments are lost when they leave memory": (
        "d2 z1 disk",
        lambda: patch.object(Shelf, "let_go", lambda self, number: self.areas[number].zero_()),
    ),
    "offloaded moments see a norm's gradient before it is summed": (
        "t2 sp disk",
        lambda: patch.object(offload, "own_gradient", lambda parameter: local(parameter.grad)),
    ),
    "recomputation from a rounded input": ("p2 mb4 full", _reads_dropped_state),
}
"""What is wrong: the case that is trained, and how to plant it."""
