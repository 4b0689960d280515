"""Memory as a run shows it: the metered step, and offload that finds no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu import stages
from danlu.data.prepared import Prepared
from danlu.engines.base import MEMORY_KINDS, Engine
from danlu.errors import RunStopped, UserError
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.train import checkpoint, room
from danlu.watch import store

Run = Callable[..., tuple[dict[str, Any], str]]
RecipeOf = Callable[..., Recipe]
EngineOf = Callable[[Recipe], Engine]


def losses(folder: Path) -> list[float]:
    return list(map(float, store.series(folder / "metrics.sqlite", "train/loss")[1]))


def test_the_second_step_is_metered(run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path) -> None:
    found = {}
    for name in ("plain", "metered"):
        (folder := tmp_path / name).mkdir()
        recipe = recipe_of("train.steps=3", f"watch.memory={str(name == 'metered').lower()}")
        _, printed = run(recipe, torch_engine(recipe), folder)
        found[name] = (losses(folder), [e for e in store.events(folder / "metrics.sqlite") if e.kind == "memory"], printed)
    assert found["plain"][0] == found["metered"][0]
    assert found["plain"][1] == [] and "memory at its peak" not in found["plain"][2]
    (event,) = found["metered"][1]
    (rank,) = event.data["ranks"]
    assert event.step == 2
    assert rank["peak"] == sum(rank[f"peak_{kind}"] for kind in MEMORY_KINDS)
    assert event.message in found["metered"][2]


def test_a_run_of_one_step_is_metered_in_it(run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path) -> None:
    recipe = recipe_of("train.steps=1", "train.schedule.warmup_steps=1", "watch.memory=true")
    run(recipe, torch_engine(recipe))
    assert [e.step for e in store.events(tmp_path / "metrics.sqlite") if e.kind == "memory"] == [1]


def test_a_disk_that_is_full_leaves_the_checkpoints(
    run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "straight").mkdir()
    run(recipe_of("train.steps=6"), torch_engine(recipe_of("train.steps=6")), tmp_path / "straight")
    (folder := tmp_path / "stopped").mkdir()
    # The schedule is that of six steps, three of which are done when the disk fills up.
    recipe = recipe_of("train.steps=6", "checkpoint.every=3", "memory.offload_optimizer=disk")
    engine = torch_engine(recipe)
    step, done = engine.train_step, []

    def three(*arguments: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return step(*arguments)

    engine.train_step = three  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(recipe, engine, folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(RunStopped, match="the disk is full; checkpoints are untouched"):
            run(recipe, torch_engine(recipe), folder)
    found = checkpoint.latest(folder / "checkpoints", lambda line: pytest.fail(line))
    assert found is not None and found.step == 3
    run(recipe, torch_engine(recipe), folder)
    assert losses(folder) == losses(tmp_path / "straight")


def test_too_little_room_is_told_before_a_model_is_built(
    recipe_of: RecipeOf, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.probes, "disk_free_bytes", lambda _folder: 1000)
    monkeypatch.setattr("danlu.engines.create", lambda *_: pytest.fail("a model was built"))
    monkeypatch.setattr("danlu.engines.launch", lambda *_: pytest.fail("processes were started"))
    recipe = recipe_of("memory.offload_optimizer=disk", "parallel.data=2")
    run = RunFolder.create(recipe, tmp_path / "run")
    with pytest.raises(UserError, match=r"memory\.offload_optimizer: disk needs"), (tmp_path / "out").open("w") as stream:
        stages.train(recipe, run, prepared, stream)
