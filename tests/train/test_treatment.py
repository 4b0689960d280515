"""The doctor inside the loop: what it measures, says and does, with the real engine on a small model."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import curve, kinds, saved, state

from danlu.data.batch_statistics import BatchStatistics, batch_statistics
from danlu.data.batches import TrainingBatches
from danlu.data.prepared import Prepared
from danlu.errors import RunStopped, UserError
from danlu.recipe import Recipe
from danlu.watch import store

Run = Callable[..., tuple[dict[str, Any], str]]
RecipeOf = Callable[..., Recipe]
STEPS, DAMAGED = 140, range(62, 75)
SETTINGS = (
    "doctor.skip_batches=10",
    f"train.steps={STEPS}",
    "doctor.every=5",
    "doctor.time_share=1",
    "checkpoint.every=20",
    "checkpoint.keep=3",
)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some batches teach the opposite: random tokens in place of the text, at a rate that ruins the weights."""
    honest = TrainingBatches.__getitem__

    def damaged(self: TrainingBatches, step: int) -> dict[str, Any]:
        batch = honest(self, step)
        if step in DAMAGED:
            tokens = np.random.default_rng(step).integers(0, 6, batch["inputs"].shape)
            batch["inputs"][:] = tokens
            batch["targets"][..., :-1] = tokens[..., 1:]
        return batch

    monkeypatch.setattr(TrainingBatches, "__getitem__", damaged)


def findings(folder: Path) -> list[tuple[int, str]]:
    found = [event for event in store.events(folder / "metrics.sqlite") if event.kind == "finding"]
    return [(event.step, event.data["finding"]["rule"]) for event in found if event.data["finding"]["severity"] != "info"]


def mean(folder: Path, steps: range) -> float:
    losses = curve(folder)
    return float(np.mean([losses[step] for step in steps]))


def test_a_healthy_run_hears_nothing_and_goes_its_way(run: Run, recipe_of: RecipeOf, torch_engine: Any, tmp_path: Path) -> None:
    """The doctor changes no bit of the curve, and each invariant is measured."""
    with_it, without = tmp_path / "with", tmp_path / "without"
    for folder, settings in ((with_it, SETTINGS), (without, (*SETTINGS, "doctor.every=0"))):
        folder.mkdir()
        recipe = recipe_of(*settings, "train.steps=60")
        run(recipe, torch_engine(recipe), folder)
    assert findings(with_it) == []
    assert curve(with_it) == curve(without)
    names = set(store.names(with_it / "metrics.sqlite")) - set(store.names(without / "metrics.sqlite"))
    assert {name.split("/")[0] for name in names} == {"batch", "optimizer", "probe", "sample", "time", "weights"}
    assert curve(with_it, "batch/target_offset_1") == dict.fromkeys(range(1, 61), 1.0)
    assert all(loss == pytest.approx(curve(with_it)[step], rel=1e-5) for step, loss in curve(with_it, "probe/batch_loss").items())
    for silent in ("probe/future", "probe/document", "probe/again", "probe/far"):
        assert max(curve(with_it, silent).values()) < 1e-5, silent
    assert curve(with_it, "optimizer/updates") == {step: step for step in range(5, 61, 5)}


def test_the_summary_has_what_was_found_and_what_was_forgotten(
    run: Run, recipe_of: RecipeOf, torch_engine: Any, tmp_path: Path, prepared: Prepared
) -> None:
    """The text of doctor.retain is judged ahead of the first step and at each validation."""
    text = tmp_path / "kept.txt"
    text.write_text("the cat sees the dog . " * 60)
    recipe = recipe_of(f"doctor.retain={text}", "doctor.every=2", "doctor.time_share=1", "train.evaluate_every=6")
    engine = torch_engine(recipe)
    (tmp_path / "run").mkdir()
    summary, _ = run(recipe, engine, tmp_path / "run")
    kept = curve(tmp_path / "run", "retained/loss")
    assert list(kept) == [0, 6, 12] and kept[0] == pytest.approx(math.log(prepared.vocab_size), rel=0.1)
    assert kept[12] < kept[0]
    assert summary["findings"] == [], "a healthy run"
    recipe = recipe_of("doctor.every=2", "doctor.time_share=1", "train.optimizer.learning_rate=1.0", "train.steps=30")
    (tmp_path / "other").mkdir()
    summary, _ = run(recipe, torch_engine(recipe), tmp_path / "other")
    assert summary["findings"][0]["rule"] == "learning_rate_too_high"
    assert run(recipe, torch_engine(recipe), tmp_path / "other")[0]["findings"] == summary["findings"], "of a run that is done"
    recipe = recipe_of("doctor.every=2", "doctor.retain=nowhere.txt")
    with pytest.raises(UserError, match=r"^doctor\.retain: 'nowhere\.txt': there is no such file"):
        run(recipe, torch_engine(recipe), tmp_path / "third")


def test_going_back_leads_to_the_curve_of_the_healthy_twin(
    run: Run, recipe_of: RecipeOf, torch_engine: Any, tmp_path: Path, damage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that meets damaged batches goes back and leaves them out; one that only warns ends far above."""
    ends = {}
    for name, settings in {
        "warned": ("doctor.on_critical=warn",),
        "mended": ("doctor.on_critical=rollback",),
        "healthy": ("doctor.on_critical=warn",),
    }.items():
        if name == "healthy":
            monkeypatch.undo()
        folder = tmp_path / name
        folder.mkdir()
        recipe = recipe_of(*SETTINGS, "train.optimizer.learning_rate=1e-2", *settings)
        _, printed = run(recipe, torch_engine(recipe), folder)
        ends[name] = mean(folder, range(76, 86)), printed, mean(folder, range(76, 79))
    assert ends["mended"][0] == pytest.approx(ends["healthy"][0], rel=0.05), ends
    assert ends["warned"][2] > 1.2 * ends["healthy"][2]
    mended = tmp_path / "mended"
    rollbacks = [event for event in store.events(mended / "metrics.sqlite") if event.kind == "rollback"]
    assert len(rollbacks) == 1
    origin = re.search(r"back to step-(\d+)", rollbacks[0].message)
    assert origin is not None and 0 < int(origin[1]) <= DAMAGED.start and rollbacks[0].message in ends["mended"][1]
    position = state(mended)["position"]
    assert (position["step"], position["rollbacks"]) == (STEPS, 1)
    assert position["data_offset"] == rollbacks[0].step - int(origin[1]) + 10
    assert sorted(curve(mended)) == list(range(1, STEPS + 1)), "a curve without a gap"
    assert max(curve(mended).values()) == max(curve(tmp_path / "healthy").values()), "without the damage"


def breaks(at: int) -> Callable[[int], float]:
    """Losses that fall, and from a step on are not finite."""
    return lambda step: math.nan if step >= at else 6.0 * step**-0.3


def test_a_run_may_stop_at_what_is_critical(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    engine = looked_at(scripted(breaks(47)))
    recipe = recipe_of(*SETTINGS, "doctor.on_critical=stop", "train.non_finite_limit=2")
    with pytest.raises(
        RunStopped, match=r"after step 48 the doctor found that train/loss is not finite.*; .*doctor\.on_critical=warn"
    ):
        run(recipe, engine)
    assert kinds(tmp_path)[-3:] == ["skipped_step", "finding", "stop"]
    assert saved(tmp_path) == [20, 40], "nothing is saved of it"


def test_a_stop_leaves_what_was_being_written(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """The checkpoint after step 40 is held up until the step that stops the run."""
    broken = threading.Event()

    def script(step: int) -> float:
        if step == 42:
            broken.set()
        return breaks(41)(step)

    engine = looked_at(scripted(script))
    engine.before_save = lambda folder: "00000040" not in folder.name or assert_soon(broken)
    recipe = recipe_of(*SETTINGS, "doctor.on_critical=stop", "checkpoint.asynchronous=true", "train.non_finite_limit=2")
    with pytest.raises(RunStopped, match="after step 42 the doctor found"):
        run(recipe, engine)
    assert saved(tmp_path) == [20, 40]


def assert_soon(event: threading.Event) -> None:
    assert event.wait(20)


def test_statistics_of_a_batch_are_of_that_batch(
    run: Run, recipe_of: RecipeOf, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a return as well, which leaves batches out."""
    counted: list[np.ndarray] = []
    trained: list[np.ndarray] = []

    def count(batch: Any) -> BatchStatistics:
        counted.append(batch["inputs"])
        return batch_statistics(batch)

    monkeypatch.setattr("danlu.train.recording.batch_statistics", count)
    engine = looked_at(scripted(lambda step: math.nan if step in (47, 48, 49) else 6.0 * step**-0.3))
    train_step = engine.train_step
    engine.train_step = lambda batch, rate: trained.append(batch["inputs"]) or train_step(batch, rate)
    run(recipe_of(*SETTINGS, "train.steps=50", "doctor.on_critical=rollback", "watch.statistics_every=1"), engine)
    assert engine.steps == [*range(1, 50), *range(60, 70)], "from step 40 on, with other batches"
    assert len(trained) == len(counted)
    assert all(np.array_equal(one, other) for one, other in zip(trained, counted, strict=True))


def test_a_run_goes_back_a_bounded_number_of_times(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """What comes again at every return stops the run at last."""
    engine = looked_at(scripted(lambda step: math.nan if engine.weight == 45 else 6.0 * step**-0.3))
    recipe = recipe_of(*SETTINGS, "doctor.on_critical=rollback", "doctor.rollbacks=2", "doctor.rollback_rate=0.5")
    with pytest.raises(RunStopped, match="went back 2 times already"):
        run(recipe, engine)
    events = [event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "rollback"]
    assert [event.message.split("; ")[0] for event in events] == ["step 48: back to step-00000040"] * 2
    assert "0.25 of the recipe's" in events[1].message
    position = state(tmp_path)["position"]
    assert (position["step"], position["data_offset"], position["rate_factor"]) == (40, 36, 0.25)


def test_there_may_be_nowhere_to_go_back_to(run: Run, recipe_of: RecipeOf, scripted: Any) -> None:
    recipe = recipe_of(*SETTINGS, "doctor.on_critical=rollback")
    with pytest.raises(RunStopped, match="there is no checkpoint from before step 7 to go back to"):
        run(recipe, looked_at(scripted(breaks(7))))


def test_what_going_back_cannot_mend_stops_the_run(
    run: Run, recipe_of: RecipeOf, torch_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TrainingBatches.__getitem__

    def unshifted(self: TrainingBatches, step: int) -> dict[str, Any]:
        batch = honest(self, step)
        return batch | {"targets": batch["inputs"].copy()}

    monkeypatch.setattr(TrainingBatches, "__getitem__", unshifted)
    recipe = recipe_of(*SETTINGS, "doctor.on_critical=rollback")
    with pytest.raises(RunStopped, match=r"labels are not shifted.*going back would not mend it"):
        run(recipe, torch_engine(recipe))


def looked_at(engine: Any) -> Any:
    """A scripted engine that also answers what the doctor asks of an engine."""
    from danlu.engines.base import Vitals

    def vitals() -> Vitals:
        weight = np.full(4, 1.0 + 1e-3 * (engine.weight or 0), np.float32)
        rate = engine.rates[-1] if engine.rates else 0.0
        settings = {"learning_rate": rate, "weight_decay": 0.1, "updates": float(engine.weight or 0)}
        return Vitals({"model.norm.weight": weight}, settings)

    engine.vitals = vitals
    honest = engine.evaluate
    engine.evaluate = lambda batch: honest(batch) if engine.steps else (1.0, 1)
    return engine
