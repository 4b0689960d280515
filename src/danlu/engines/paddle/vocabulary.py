"""The output embedding where tensor ranks split the vocabulary: each has some rows of it, and sees some of the logits."""

from __future__ import annotations

import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.layers.mpu import mp_ops

from danlu.engines.paddle.layout import Layout


class VocabularyShard:
    """This rank's part of the output embedding."""

    def __init__(self, layout: Layout, size: int) -> None:
        self.group, self.size = layout.group("tensor"), size
        self.rows = -(-size // layout.tensor)
        self.first = layout.tensor_rank * self.rows
        self.real = min(max(0, size - self.first), self.rows)
        """Those of the rows here that are no filling."""

    def cross_entropy(self, logits_nv: Tensor, index_n1: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
        """This part of the softmax over the whole vocabulary, and the loss (n, 1), 0 where the index is ``ignored``."""
        loss, softmax = mp_ops._c_softmax_with_cross_entropy(
            self._filled(logits_nv, float("-inf")), index_n1, group=self.group, return_softmax=True, ignore_index=ignored
        )
        return self._filled(softmax, 0.0), loss  # paddle's exp(-inf) on CPUs is 1e-38

    def local(self, index_n1: Tensor) -> tuple[Tensor, Tensor]:
        """The row here of each index, and whether it is here."""
        row = index_n1 - self.first
        return row.clip(0, self.rows - 1), ((row >= 0) & (row < self.rows)).astype("float32")

    def sum(self, value: Tensor) -> Tensor:
        """Over the parts of the vocabulary."""
        dist.all_reduce(value, group=self.group)
        return value

    def whole(self, logits_btv: Tensor) -> Tensor:
        """The logits of all parts."""
        parts: list[Tensor] = []
        dist.all_gather(parts, logits_btv.contiguous(), group=self.group)
        return paddle.concat(parts, axis=-1)[..., : self.size]

    def _filled(self, values_nv: Tensor, value: float) -> Tensor:
        """With ``value`` for the rows that fill the vocabulary up."""
        if self.real == self.rows:
            return values_nv
        return paddle.where(paddle.arange(self.rows) < self.real, values_nv, paddle.full_like(values_nv, value))
