"""What can be wrong with the run of a demo: the real engine, with another recipe, other batches or a mistake in one method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from danlu.data.batches import IGNORED
from danlu.engines.base import Batch, StepSource
from danlu.engines.torch.engine import TorchEngine

DAMAGED = range(80, 110)


def _changing(change: Callable[[int, dict[str, Any]], None]) -> type[TorchEngine]:
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
        noise = np.random.default_rng(step).integers(0, int(batch["inputs"].max()) + 1, tuple(batch["inputs"].shape))
        batch["inputs"] = batch["inputs"].new_tensor(noise)
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


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    says: str
    overrides: tuple[str, ...] = ()
    engine: type[TorchEngine] = TorchEngine


FAULTS = {
    "none": Fault("nothing: the doctor has nothing to say"),
    "lr-too-high": Fault("a learning rate 300 times too high", ("train.optimizer.learning_rate=1.0",)),
    "lr-too-low": Fault("a learning rate 3,000 times too low", ("train.optimizer.learning_rate=1e-6",)),
    "labels-shifted-twice": Fault("every label is the token after the next", (), _changing(_shift)),
    "damaged-shard": Fault(f"batches {DAMAGED.start + 1} to {DAMAGED.stop} are random tokens", (), _changing(_damage)),
    "damaged-shard-rollback": Fault(
        "the same, and the run goes back and leaves them out",
        ("doctor.on_critical=rollback", "checkpoint.every=20", "train.optimizer.learning_rate=1e-2"),
        _changing(_damage),
    ),
    "repeated-data": Fault("loader workers share a random seed: half of every batch is the other half", (), _changing(_repeat)),
    "frozen-layer": Fault("the second layer needs no gradient", (), _Frozen),
    "gradients-not-zeroed": Fault("the gradients of all steps add up", (), _Accumulating),
}
