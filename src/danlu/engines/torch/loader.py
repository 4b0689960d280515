"""Batches through torch's DataLoader: worker processes assemble them ahead of the step that needs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from torch.utils.data import DataLoader, Dataset

from danlu.engines.base import Batch, StepSource


class _Steps(Dataset[Batch]):
    def __init__(self, source: StepSource) -> None:
        self.source = source

    def __getitem__(self, step: int) -> Batch:
        return self.source[step]


def _ignore_interrupt(_worker: int) -> None:
    # Ctrl-C goes to the whole process group; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def batches(source: StepSource, steps: range, workers: int, pin_memory: bool) -> Iterator[Batch]:
    """The batch of each step in turn, as tensors."""
    loader = DataLoader(
        _Steps(source),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_ignore_interrupt,
        pin_memory=pin_memory,
    )
    return iter(loader)
