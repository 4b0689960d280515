"""Batches through paddle's DataLoader: worker processes assemble them ahead of the step that needs them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
from paddle.io import BatchSampler, DataLoader, Dataset

from danlu.engines.base import Batch, StepSource
from danlu.engines.workers import heed_only_the_parent
from danlu.errors import DanluError

_ERROR = "error"


class _Steps(Dataset):
    def __init__(self, source: StepSource) -> None:
        self.source = source

    def __getitem__(self, step: int) -> dict[str, Any]:
        try:
            return dict(self.source[step])
        except DanluError as error:
            # Raised here, it would reach the training process as a traceback wrapped into its message; and what holds no array
            # ends paddle's iteration without a word. The bytes come back from a process of our own.
            return {_ERROR: np.frombuffer(pickle.dumps(error), np.uint8)}


class _InOrder(BatchSampler):
    """One step after the other."""

    def __init__(self, steps: range) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[list[int]]:
        return ([step] for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def _only(batches: list[dict[str, Any]]) -> dict[str, Any]:
    return batches[0]


def batches(source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
    """The batch of each step in turn, as tensors; the workers start at once. Raises what the source raises."""
    loader = DataLoader(
        _Steps(source),
        batch_sampler=_InOrder(steps),
        collate_fn=_only,
        num_workers=workers,
        prefetch_factor=4,
        worker_init_fn=heed_only_the_parent,
    )
    return _raised(iter(loader))


def _raised(results: Iterator[dict[str, Any]]) -> Iterator[Batch]:
    for result in results:
        if _ERROR in result:
            del results  # or the traceback would keep the workers
            raise pickle.loads(np.asarray(result[_ERROR]).tobytes())
        yield result
