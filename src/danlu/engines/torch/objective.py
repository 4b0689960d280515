"""What a step minimises. An engine asks of it: what to divide the loss by, what a model ends in, and what to tell.

This one is that of plain training. Others differ in a part of it: a teacher's probabilities (``distillation``), or pairs of
answers (``preference``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from danlu.engines.base import Batch
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.loss import IGNORED, Criterion


class Objective:
    """The cross-entropy, in nats, of the supervised tokens."""

    names: tuple[str, ...] = ()
    """Of what is measured beside the loss, as sums over what is counted."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(self.names), device=device)
        """Of the micro-batches since ``told``, on this data rank."""

    @property
    def frozen(self) -> Iterable[Tensor]:
        """Weights of a second model."""
        return ()

    def rewritten(self, batch: Batch) -> Batch:
        """The batch that is learned from."""
        return batch

    def count(self, batch: Batch) -> Tensor:
        """How many things the loss of a batch is the mean over, on this data rank."""
        counted: Tensor = (batch["targets"] != IGNORED).sum()
        return counted

    def criterion(self, tensors: Mapping[str, Tensor]) -> Criterion | None:
        """What makes the loss of a micro-batch; None: the cross-entropy."""
        return None

    def told(self, mean: float, count: int, layout: Layout) -> tuple[float, dict[str, float]]:
        """The loss to report, given the mean of the criterion over all data ranks, and what else was measured.

        With a count of 1 and the sum in place of the mean, all that is returned are sums.
        """
        measured = []
        if self.names:
            measured = layout.sum(self.sums, "data").tolist()
            self.sums.zero_()
        return self.reported(mean, {name: total / count for name, total in zip(self.names, measured, strict=True)})

    def reported(self, mean: float, measured: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Which of the means is the loss."""
        return mean, measured
