"""When a run checks that its replicas are equal, and how it ends when they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import RunStopped
from danlu.recipe import Recipe

RecipeOf = Callable[..., Recipe]
Run = Callable[..., Any]
EVERY = ("parallel.data=2", "train.steps=10", "checkpoint.every=4", "watch.replica_check_every=3")


def checks(engine: Any, wrong_from: int | None = None) -> list[int]:
    """The steps after which the engine is asked; from one on, it says that a parameter differs."""
    asked: list[int] = []

    def replicas_differ() -> list[str]:
        asked.append(len(engine.steps))
        return ["model.norm.weight on ranks 0, 1"] if wrong_from is not None and asked[-1] >= wrong_from else []

    engine.replicas_differ = replicas_differ
    return asked


def test_at_the_start_every_few_steps_and_before_each_checkpoint(scripted: Any, recipe_of: RecipeOf, run: Run) -> None:
    asked = checks(engine := scripted(lambda step: 5.0 / step))
    run(recipe_of(*EVERY), engine)
    assert asked == [0, 3, 4, 6, 8, 9, 10]


def test_only_before_checkpoints(scripted: Any, recipe_of: RecipeOf, run: Run) -> None:
    asked = checks(engine := scripted(lambda step: 5.0 / step))
    run(recipe_of(*EVERY[:-1], "watch.replica_check_every=0"), engine)
    assert asked == [0, 4, 8, 10]


def test_one_process_has_no_replicas(scripted: Any, recipe_of: RecipeOf, run: Run) -> None:
    asked = checks(engine := scripted(lambda step: 5.0 / step))
    run(recipe_of(*EVERY[1:]), engine)
    assert asked == []


def test_a_difference_stops_the_run_and_nothing_is_saved_of_it(
    scripted: Any, recipe_of: RecipeOf, run: Run, tmp_path: Path
) -> None:
    checks(engine := scripted(lambda step: 5.0 / step), wrong_from=7)
    with pytest.raises(RunStopped) as caught:
        run(recipe_of(*EVERY), engine)
    text = str(caught.value)
    assert text.startswith("replicas are not equal after step 8 (they were after step 6): model.norm.weight on ranks 0, 1; ")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_difference_after_a_resume(scripted: Any, recipe_of: RecipeOf, run: Run) -> None:
    """Before the first step."""
    run(recipe_of(*EVERY), scripted(lambda step: 5.0 / step))
    checks(engine := scripted(lambda step: 5.0 / step), wrong_from=0)
    with pytest.raises(RunStopped, match=r"replicas are not equal after step 10: model\.norm"):
        run(recipe_of(*EVERY, "train.steps=12"), engine)
    assert engine.steps == []
