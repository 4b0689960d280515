"""The loop with saves in the background: training goes on, and nothing is lost that was begun."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from curves import curve, falling, kinds, saved, state

from danlu.errors import Interrupted, RunStopped, UserError
from danlu.recipe import Recipe
from danlu.watch import store

Run = Callable[..., tuple[dict[str, Any], str]]
RecipeOf = Callable[..., Recipe]


ASYNCHRONOUS = ("checkpoint.every=4", "checkpoint.asynchronous=true")


def test_steps_go_on_while_a_checkpoint_is_written(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """The one after step 4 is held up until step 6 is done; what it holds is the state after step 4."""
    done, written = threading.Event(), []

    def script(step: int) -> float:
        if step == 7:
            done.set()
        return falling(step)

    def hold_up(folder: Path) -> None:
        assert done.wait(20)
        written.append((folder.name, len(engine.steps)))

    engine = scripted(script)
    engine.before_save = hold_up
    run(recipe_of(*ASYNCHRONOUS, "checkpoint.keep=3"), engine)
    assert saved(tmp_path) == [4, 8, 12]
    assert written[0][0] == "step-00000004.partial" and written[0][1] >= 7
    assert json.loads((tmp_path / "checkpoints" / "step-00000004" / "weights.json").read_text()) == 4
    events = [event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "checkpoint"]
    assert [event.message.split(" in ")[0] for event in events] == [f"saved step-{step:08d}" for step in (4, 8, 12)]
    assert events[0].step >= 7 and events[2].step == 12
    assert kinds(tmp_path)[-2:] == ["finished", "checkpoint"]
    assert all(0 < event.data["stood_still"] <= event.data["seconds"] for event in events)


def test_the_next_save_waits_for_the_one_before(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    writing: list[str] = []

    def slow(folder: Path) -> None:
        assert not writing
        writing.append(folder.name)
        time.sleep(0.05)
        writing.remove(folder.name)

    engine = scripted(falling)
    engine.before_save = slow
    run(recipe_of("checkpoint.every=1", "checkpoint.asynchronous=true", "checkpoint.keep=20"), engine)
    assert saved(tmp_path) == list(range(1, 13))
    for step in range(1, 13):
        assert json.loads((tmp_path / "checkpoints" / f"step-{step:08d}" / "weights.json").read_text()) == step


def test_a_full_disk_in_the_background_stops_the_run(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """At the end of the first step after it, with the words of a save that training waits for."""

    def full(folder: Path) -> None:
        if "00000008" in folder.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    engine = scripted(falling)
    engine.before_save = full
    with pytest.raises(RunStopped, match=r"step-00000008: the checkpoint could not be written: the disk is full; the last good"):
        run(recipe_of(*ASYNCHRONOUS), engine)
    assert saved(tmp_path) == [4]
    assert kinds(tmp_path)[-1] == "stop" and "checkpoint" not in kinds(tmp_path)[2:]
    assert engine.steps[-1] <= 12
    engine = scripted(falling)
    run(recipe_of(*ASYNCHRONOUS), engine)
    assert engine.steps == list(range(5, 13))
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}


@pytest.mark.parametrize("at", [4, 5, 8])
def test_an_interrupt_waits_for_what_is_being_written(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, at: int
) -> None:
    """In the step that saves, in the next one, and when the next save is due."""

    def interrupted(step: int) -> float:
        if step == at:
            os.kill(os.getpid(), signal.SIGINT)
        return falling(step)

    engine = scripted(interrupted)
    engine.before_save = lambda _folder: time.sleep(0.1)
    with pytest.raises(Interrupted, match=f"stopped after step {at} of 12 with a checkpoint"):
        run(recipe_of(*ASYNCHRONOUS), engine)
    assert saved(tmp_path) == sorted({4, at})
    assert state(tmp_path)["position"]["step"] == at


@pytest.mark.parametrize("error", [UserError("a damaged shard"), ZeroDivisionError()])
def test_an_error_in_training_leaves_what_was_being_written(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, error: Exception
) -> None:
    def broken(step: int) -> float:
        if step == 5:
            raise error
        return falling(step)

    engine = scripted(broken)
    engine.before_save = lambda _folder: time.sleep(0.1)
    with pytest.raises(type(error)):
        run(recipe_of(*ASYNCHRONOUS), engine)
    assert saved(tmp_path) == [4]


def test_an_error_in_training_is_told_before_one_of_a_save(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def broken(step: int) -> float:
        if step == 5:
            full.set()
            raise UserError("a damaged shard")
        return falling(step)

    def fails(folder: Path) -> None:
        assert full.wait(20)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    full, engine = threading.Event(), scripted(broken)
    engine.before_save = fails
    with pytest.raises(UserError, match=r"^a damaged shard$"):
        run(recipe_of(*ASYNCHRONOUS), engine)
    assert saved(tmp_path) == []
