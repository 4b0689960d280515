"""As faults.py, for the paddle engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_fully_shard

from danlu.engines.paddle import auto_parallel, engine, shard
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.optimizer import Optimizer
from danlu.engines.paddle.pipeline import Pipeline
from danlu.engines.paddle.vocabulary import VocabularyShard

Plant = Callable[[], AbstractContextManager[Any]]


def _does_nothing(holder: Any, name: str) -> Plant:
    return lambda: patch.object(holder, name, lambda *_: None)


def _gives_back(holder: Any, name: str) -> Plant:
    """What it is given, and does nothing."""
    return lambda: patch.object(holder, name, lambda _, value: value)


def _own_count() -> AbstractContextManager[Any]:
    """Each data rank divides by its own supervised tokens."""
    honest = Layout.sum

    def wrong(self: Layout, value: Tensor, *names: str) -> Tensor:
        return value * self.data if value.is_integer() else honest(self, value, *names)

    return patch.object(Layout, "sum", wrong)


class _Silent:
    """paddle.distributed, but all-reduces leave everybody with his own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, *_tensor: Any, **_named: Any) -> None:
        return


def _layer_twice() -> AbstractContextManager[Any]:
    """The first stage ends a layer too late: two stages have it."""
    honest = engine.split_layers

    def wrong(shape: Any, stages: int) -> list[range]:
        first, *rest = honest(shape, stages)
        return [range(first.start, first.stop + 1), *rest]

    return patch.object(engine, "split_layers", wrong)


def _row_too_late() -> AbstractContextManager[Any]:
    honest = VocabularyShard.local
    return patch.object(VocabularyShard, "local", lambda self, index: honest(self, index + (self.first > 0)))


def _drifts() -> AbstractContextManager[Any]:
    """A replica that drifts away: the last data rank has another learning rate."""
    honest = Optimizer.step

    def wrong(self: Optimizer, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        return honest(self, learning_rate * (1 + 0.01 * self.layout.data_rank), loss_is_finite)

    return patch.object(Optimizer, "step", wrong)


def _masks_of_others() -> AbstractContextManager[Any]:
    honest = auto_parallel.own
    return patch.object(auto_parallel, "own", lambda tensor: honest(tensor).flip(0))


FAULTS: dict[str, tuple[str, Plant]] = {
    "gradients are not reduced over the replicas": ("d2", _does_nothing(shard, "fused_allreduce_gradients")),
    "each data rank divides by its own tokens": ("d2", _own_count),
    "all data ranks train on the same samples": ("d2", lambda: patch.object(Layout, "data_rank", property(lambda _: 0))),
    "one replica has another learning rate": ("d2", _drifts),
    "clipping by the local norm": ("d2 z1", _gives_back(Layout, "sum_all")),
    "sharded parameters are not sent around": ("d2 z1", _does_nothing(shard._Split, "_sharding_sync_parameters")),
    "gradients of split parameters are not reduced": (
        "d2 z3",
        lambda: patch.object(group_sharded_fully_shard, "dist", _Silent()),
    ),
    "clipping by the norm of one part of ZeRO 3": ("d2 z3", _gives_back(Layout, "sum_all")),
    "clipping by the norm of one pipeline rank": ("p2 mb2", _gives_back(Layout, "sum_all")),
    "tied weights come apart": ("p2 mb2 tied", _does_nothing(Pipeline, "sum_tied_gradients")),
    "a stage ends a layer too late": ("p2 mb2", _layer_twice),
    "the vocabulary's second part begins a row too late": ("t2", _row_too_late),
    "hidden gradients of the vocabulary's parts are not summed": ("t2", _gives_back(VocabularyShard, "sum")),
    "gradients of the parts of the sequence are not summed": (
        "t2 sp biases",
        _does_nothing(shard.Reducer, "_sum_over_tensor_ranks"),
    ),
    "gradients of adapters' whole halves are not summed": (
        "t2 sp lora tied",
        _does_nothing(shard.Reducer, "_sum_over_tensor_ranks"),
    ),
    "norms of heads are not summed over tensor ranks": ("t2 qwen3", _does_nothing(shard.Reducer, "_sum_over_tensor_ranks")),
    "a data rank's gradient of the head is taken for the sum": (
        "d2 auto",
        lambda: patch.object(auto_parallel, "_SUM", auto_parallel._WHOLE),
    ),
    "masks of the rows of another data rank": ("d2 auto drop", _masks_of_others),
}
"""What is wrong: the case that is trained, and how to plant it."""
