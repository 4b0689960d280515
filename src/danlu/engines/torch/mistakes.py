"""Engines with one thing wrong, by name, for the demo of the doctor: other batches, or a mistake in one method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from danlu.engines.base import Batch, StepSource
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.loss import IGNORED

DAMAGED = range(80, 110)
"""Steps, counted from 0."""


def _changing(change: Callable[[int, dict[str, Tensor]], None]) -> type[TorchEngine]:
    """An engine whose loader changes batches on their way; `change` takes a step, counted from 0, and its tensors."""

    class Changing(TorchEngine):
        def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
            for step, batch in zip(steps, super().loader(source, steps, workers), strict=True):
                changed = dict(batch)
                change(step, changed)
                yield changed

    return Changing


def _shift(step: int, batch: dict[str, Any]) -> None:
    batch["targets"] = batch["targets"].roll(-1, -1)
    batch["targets"][..., -1] = IGNORED


def _damage(step: int, batch: dict[str, Any]) -> None:
    if step in DAMAGED:
        inputs = batch["inputs"]
        random = torch.Generator().manual_seed(step)
        batch["inputs"] = torch.randint(0, int(inputs.max()) + 1, inputs.shape, generator=random)
        batch["targets"][..., :-1] = batch["inputs"][..., 1:]


def _repeat(step: int, batch: dict[str, Any]) -> None:
    for name, tensor in batch.items():
        rows = tensor.shape[1] // 2
        if name != "samples":
            batch[name] = tensor[:, :rows].repeat(1, 2, *(1,) * (tensor.ndim - 2))


class _Frozen(TorchEngine):
    def initialise(self) -> None:
        super().initialise()
        for name, parameter in self.parameters.items():
            parameter.requires_grad_("layers.1." not in name)


class _Accumulating(TorchEngine):
    """Gradients are never zeroed."""

    def initialise(self) -> None:
        super().initialise()
        self.optimizer.adamw.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


MISTAKES: dict[str, type[TorchEngine]] = {
    "shifted labels": _changing(_shift),
    "damaged batches": _changing(_damage),
    "repeated samples": _changing(_repeat),
    "frozen layer": _Frozen,
    "kept gradients": _Accumulating,
}
