"""Sequence parallelism (Korthikanti et al. 2022) with Fleet's layers: tensor ranks split the sequence between a block's matrices.

Fleet has the sequence in front, as (t, b, d); here it stands behind the batch.
"""

from __future__ import annotations

from typing import Any

from paddle import Tensor
from paddle.autograd import PyLayer
from paddle.distributed.fleet.meta_parallel import VocabParallelEmbedding
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    AllGatherOp,
    ColumnSequenceParallelLinear,
    GatherOp,
    ReduceScatterOp,
    RowSequenceParallelLinear,
    ScatterOp,
)


class _Swap(PyLayer):
    """The first two dimensions change places, in memory too, both ways: collectives take nothing else."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.transpose([1, 0, 2]).contiguous()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad.transpose([1, 0, 2]).contiguous()


class ColumnLinear(ColumnSequenceParallelLinear):
    """From a part of the sequence to all of it, with a part of the outputs."""

    def forward(self, x_btd: Tensor) -> Tensor:
        """The sum of the ranks' gradients is split along the sequence again."""
        return _Swap.apply(super().forward(_Swap.apply(x_btd)))


class RowLinear(RowSequenceParallelLinear):
    """From all of the sequence, with a part of the inputs, to a part of it."""

    def forward(self, x_btd: Tensor) -> Tensor:
        """The sum over the ranks, split along the sequence."""
        return _Swap.apply(super().forward(_Swap.apply(x_btd)))


class Embedding(VocabParallelEmbedding):
    """Every rank gets a part of the sequence."""

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """(b, t / ranks, d)."""
        return _Swap.apply(ScatterOp.apply(_Swap.apply(super().forward(tokens_bt))))


def gather(_norm: Any, _inputs: Any, x_btd: Tensor) -> Tensor:
    """A forward hook: all of the sequence, of which each rank then sees the same gradient."""
    return _Swap.apply(GatherOp.apply(_Swap.apply(x_btd)))


def join(x_btd: Tensor) -> Tensor:
    """A part of the sequence to all of it, of which each rank sees another gradient."""
    return _Swap.apply(AllGatherOp.apply(_Swap.apply(x_btd)))


def share_out(x_btd: Tensor) -> Tensor:
    """The sum over the ranks, of which each gets a part of the sequence."""
    return _Swap.apply(ReduceScatterOp.apply(_Swap.apply(x_btd)))
