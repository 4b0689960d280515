"""Batches through torch's DataLoader: worker processes assemble them ahead of the step that needs them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from danlu.engines.base import Batch, StepSource
from danlu.engines.workers import heed_only_the_parent
from danlu.errors import DanluError


class _Steps(Dataset[Batch | DanluError]):
    def __init__(self, source: StepSource) -> None:
        self.source = source

    def __getitem__(self, step: int) -> Batch | DanluError:
        try:
            return self.source[step]
        except DanluError as error:
            return error  # raised here, it would reach the training process as a traceback wrapped into its message


def batches(source: StepSource, steps: range, workers: int, pin_memory: bool) -> Iterator[Batch]:
    """The batch of each step in turn, as tensors; the workers start at once. Raises what the source raises."""
    loader = DataLoader(
        _Steps(source),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=heed_only_the_parent,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # its own, so that a resume, which starts another loader, finds torch's unmoved
    )
    return _raised(iter(loader))


def _raised(results: Iterator[Batch | DanluError]) -> Iterator[Batch]:
    for result in results:
        if isinstance(result, DanluError):
            del results  # or the traceback would keep the workers
            raise result
        yield result
