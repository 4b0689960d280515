"""Batches arrive in the order of the steps, whatever the number of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from danlu.engines.torch.engine import TorchEngine
from danlu.errors import UserError


class Source:
    """Batches that tell their step; every third one comes late. Step ``broken`` is an unreadable file."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        if step == self.broken:
            raise UserError("tokens-00003.bin: cannot be read: Input/output error")
        if step % 3 == 0:
            time.sleep(0.02)
        inputs = np.random.default_rng(step).integers(0, 1000, (2, 3, 5))
        return {"inputs": inputs, "documents": np.full((2, 3, 5), step, np.int32)}


@pytest.fixture
def engine(engine_of: Callable[..., TorchEngine]) -> TorchEngine:
    return engine_of()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("steps", [range(7), range(5, 12), range(1_000_000_000, 1_000_000_002), range(4, 4)])
def test_every_step_in_turn_from_any_step(engine: TorchEngine, workers: int, steps: range) -> None:
    got = list(engine.loader(Source(), steps, workers))
    assert len(got) == len(steps)
    for step, batch in zip(steps, got, strict=True):
        expected = Source()[step]
        assert batch.keys() == expected.keys()
        for name, array in expected.items():
            assert torch.is_tensor(batch[name])
            assert batch[name].dtype == torch.from_numpy(array).dtype
            assert np.array_equal(batch[name].numpy(), array)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_leaves_the_random_state_alone(engine: TorchEngine, workers: int) -> None:
    """A resumed run starts one loader more than an uninterrupted one, and its random numbers are to be the same."""
    before = torch.get_rng_state()
    list(engine.loader(Source(), range(3), workers))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_fails_says_so_in_its_own_words(engine: TorchEngine, workers: int) -> None:
    loader = engine.loader(Source(broken=2), range(5), workers)
    assert [int(next(loader)["documents"].flatten()[0]) for _ in range(2)] == [0, 1]
    with pytest.raises(UserError) as caught:
        next(loader)
    assert str(caught.value) == "tokens-00003.bin: cannot be read: Input/output error"


def test_workers_outlive_an_interrupt_of_the_process_group(engine: TorchEngine) -> None:
    loader = engine.loader(Source(), range(40), 2)
    next(loader)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
    assert [int(batch["documents"].flatten()[0]) for batch in loader] == list(range(1, 40))
