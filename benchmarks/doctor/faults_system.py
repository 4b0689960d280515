"""Faults of the machine, of the size of the data, and between ranks."""

from __future__ import annotations

import mmap
import time
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.doctor.fault import BASES, CURVE, PLAIN, Fault, rules
from benchmarks.doctor.faults_data import changed
from danlu.data.batches import TrainingBatches
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.optimizer import Optimizer

_leaked: list[mmap.mmap] = []


SIZE = 4 << 20


def _leaks() -> AbstractContextManager[Any]:
    """Each step keeps four megabytes alive, as a logged tensor with its graph does."""
    honest = TorchEngine.train_step

    def wrong(self: TorchEngine, batch: Any, rate: float) -> Any:
        _leaked.append(mmap.mmap(-1, SIZE))  # of the system's memory, whatever the process has freed before
        _leaked[-1].write(bytes(SIZE))
        return honest(self, batch, rate)

    context = patch.object(TorchEngine, "train_step", wrong)
    _leaked.clear()
    return context


def _slow() -> AbstractContextManager[Any]:
    """A batch takes three times as long as the rest of a step, whatever else the machine does."""
    last = [time.monotonic()]

    def wait(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
        time.sleep(min(1.0, 3 * (time.monotonic() - last[0])))
        last[0] = time.monotonic()

    return changed(wait)()


def _not_reduced() -> AbstractContextManager[Any]:
    """Each rank steps with its own gradients: the wrapper was bypassed."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch.distributed, name)

        def all_reduce(self, *_: Any, **__: Any) -> None:
            return None

    return patch.object(_fsdp_collectives, "dist", Silent())


def _same_slice() -> AbstractContextManager[Any]:
    return patch.object(Layout, "data_rank", property(lambda _: 0))


def _another_rate() -> AbstractContextManager[Any]:
    honest = Optimizer.step
    return patch.object(
        Optimizer, "step", lambda self, rate, finite: honest(self, rate * (1 + 0.01 * self.layout.data_rank), finite)
    )


def _flipped_bit() -> AbstractContextManager[Any]:
    """One weight of the second rank is off by 0.001 from step 31 on, as a flipped bit of its mantissa makes it."""
    honest = Optimizer.step
    steps = iter(range(1, 10**9))

    def wrong(self: Optimizer, rate: float, finite: bool) -> Any:
        made = honest(self, rate, finite)
        if next(steps) == 31 and self.layout.data_rank == 1:
            weight = next(iter(self.parameters.values())).detach()
            piece = weight.to_local() if hasattr(weight, "to_local") else weight
            piece.view(-1)[3] += 1e-3
        return made

    return patch.object(Optimizer, "step", wrong)


TWO = BASES["two ranks"]
FAULTS = (
    Fault("memory leak", "four megabytes a step", rules("memory_creep"), PLAIN, _leaks, visible=1),
    Fault("slow loader", "a batch takes three times as long as a step", rules("data_bound"), PLAIN, _slow, visible=20),
    Fault(
        "too little data",
        "12 documents, seen a hundred times",
        rules("overfitting", "repeated_epochs"),
        PLAIN,
        documents=12,
        visible=CURVE,
    ),
    Fault("gradients not reduced", "between two data ranks", rules("replicas"), TWO, _not_reduced),
    Fault("same slice on both ranks", "the sampler does not know the rank", rules("shared_batches"), TWO, _same_slice),
    Fault("another rate on one rank", "1 % higher", rules("replicas"), TWO, _another_rate),
    Fault(
        "a flipped bit on one rank",
        "one weight is off by 0.001 from step 31 on",
        rules("replicas"),
        TWO,
        _flipped_bit,
        visible=31,
    ),
)
