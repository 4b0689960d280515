"""Offload changes where moments and shards are, and nothing else; and memory that is offloaded is not resident."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from danlu.engines.torch import offload
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.offload import OffloadedAdamW, Shelf
from danlu.errors import RunStopped

Of = Callable[..., Any]
DISK = "memory.offload_optimizer=disk"


def weights(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.parameters.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.mark.parametrize("fields", [{}, {"tied_embeddings": True, "qkv_bias": True}])
def test_moments_on_disk_give_the_same_bits(engine_of: Of, batch_of: Of, tmp_path: Path, fields: dict[str, Any]) -> None:
    engines = [engine_of(f"memory.offload_folder={tmp_path}", *more, **fields) for more in ([], [DISK])]
    for step in range(5):
        results = [engine.train_step(batch_of(seed=step), 1e-2) for engine in engines]
        assert results[0] == results[1]
    assert same(*map(weights, engines))
    assert isinstance(engines[1].optimizer.adamw, OffloadedAdamW)
    assert engines[1].optimizer.adamw.shelf.mapping is not None


def test_the_file_has_no_name(engine_of: Of, batch_of: Of, tmp_path: Path) -> None:
    """So nothing is left of it, however the process ends, and nothing takes it for a part of the run."""
    engine = engine_of(DISK, f"memory.offload_folder={tmp_path}")
    engine.train_step(batch_of(), 1e-2)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_train_makes_no_file(engine_of: Of, batch_of: Of) -> None:
    engine = engine_of(DISK, "memory.offload_folder=/nowhere")
    engine.evaluate({name: tensor[0] for name, tensor in batch_of().items()})
    with pytest.raises(RunStopped, match="/nowhere"):
        engine.train_step(batch_of(), 1e-2)


@pytest.mark.parametrize(("before", "after"), [([DISK], []), ([], [DISK]), ([DISK], [DISK])])
def test_a_checkpoint_goes_on_where_moments_are_elsewhere(
    engine_of: Of, batch_of: Of, tmp_path: Path, before: list[str], after: list[str]
) -> None:
    straight, first, second = engine_of(), engine_of(*before), engine_of(*after)
    for step in range(6):
        straight.train_step(batch_of(seed=step), 1e-2)
    for step in range(3):
        first.train_step(batch_of(seed=step), 1e-2)
    second.train_step(batch_of(seed=99), 1e-2)  # moments of its own, which loading replaces
    second.load(tmp_path, first.save(tmp_path))
    for step in range(3, 6):
        second.train_step(batch_of(seed=step), 1e-2)
    assert same(weights(straight), weights(second))


def test_a_checkpoint_from_before_the_first_step_has_no_moments(engine_of: Of, batch_of: Of, tmp_path: Path) -> None:
    fresh, used = engine_of(DISK), engine_of(DISK)
    used.train_step(batch_of(seed=99), 1e-2)
    used.load(tmp_path, fresh.save(tmp_path))
    assert fresh.train_step(batch_of(), 1e-2) == used.train_step(batch_of(), 1e-2)
    assert same(weights(fresh), weights(used))


@pytest.mark.parametrize("place", ["host", "disk"])
def test_the_copies_of_a_gpu_give_the_same_bits(engine_of: Of, batch_of: Of, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Here between two places in host memory: down to the buffers, the update there, and up again."""
    plain = engine_of()
    monkeypatch.setattr(offload, "on_accelerator", lambda _device: True)
    copying = engine_of(f"memory.offload_optimizer={place}")
    for step in range(4):
        assert plain.train_step(batch_of(seed=step), 1e-2) == copying.train_step(batch_of(seed=step), 1e-2)
    assert copying.optimizer.adamw.transfer is not None
    assert same(weights(plain), weights(copying))


def test_host_memory_of_a_cpu_is_where_moments_are_anyway(engine_of: Of) -> None:
    assert type(engine_of("memory.offload_optimizer=host").optimizer.adamw) is torch.optim.AdamW


def test_a_full_disk_stops_the_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunStopped) as stopped:
        Shelf([1000], tmp_path)
    message = str(stopped.value)
    assert "4,000 bytes" in message and "the disk is full" in message and "memory.offload_folder" in message
    assert len(message.splitlines()) == 1


def test_an_area_keeps_what_it_holds_while_it_is_not_resident(tmp_path: Path) -> None:
    shelf = Shelf([1000, 0, 5000, 7], tmp_path)
    for number, area in enumerate(shelf.areas):
        area.fill_(number + 1)
    for number in range(4):
        shelf.let_go(number)
        shelf.expect(number)
    assert [area.numel() for area in shelf.areas] == [1000, 0, 5000, 7]
    assert all(bool((area == number + 1).all()) for number, area in enumerate(shelf.areas))


RESIDENT = """
import json, sys
from pathlib import Path
import torch
from danlu.engines.torch.offload import OffloadedAdamW
from danlu.watch.probes import peak_resident_bytes, resident_bytes

GROUPS, SIZE = 8, 1 << 20
torch.optim.AdamW([torch.ones(1, requires_grad=True)], fused=True)  # what is loaded with the first one
parameters = [torch.ones(SIZE, requires_grad=True) for _ in range(GROUPS)]
for each in parameters:
    each.grad = torch.ones(SIZE)
groups = [{"params": [each]} for each in parameters]
kept = []
for make in (lambda: OffloadedAdamW(groups, Path(sys.argv[1]), fused=True), lambda: torch.optim.AdamW(groups, fused=True)):
    before = resident_bytes()
    kept.append(make())
    for _ in range(2):
        kept[-1].step()
    print(json.dumps([peak_resident_bytes() - before, resident_bytes() - before, GROUPS * SIZE * 8]))
"""


def test_moments_on_disk_are_not_resident(tmp_path: Path) -> None:
    """Of eight groups' moments, two are in memory during the update and none after it."""
    command = [sys.executable, "-c", RESIDENT, str(tmp_path)]
    disk, memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    peak, after, moments = json.loads(disk)
    assert peak < moments / 2
    assert after < moments / 4
    peak, after, moments = json.loads(memory)
    assert peak >= moments and after >= moments
