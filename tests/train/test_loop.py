"""The loop with an engine whose results are scripted: what it decides, records, saves and says."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import curve, falling, kinds, saved, state

from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.engines.base import NOTHING_SUPERVISED, StepResult
from danlu.errors import Interrupted, RunStopped, UserError
from danlu.recipe import Recipe
from danlu.recipe.sections import ModelSection
from danlu.train.schedule import learning_rate
from danlu.watch import store

Run = Callable[..., tuple[dict[str, Any], str]]
RecipeOf = Callable[..., Recipe]
NAN = math.nan


# --- a run from its start to its end -----------------------------------------------------------------------------------------


def parameters(prepared: Prepared) -> int:
    """Untied embeddings, two blocks (four attention and three MLP matrices, two norms), a final norm."""
    return 2 * prepared.vocab_size * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def test_all_steps_are_done_recorded_and_saved(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, prepared: Prepared
) -> None:
    recipe, engine = recipe_of("train.evaluate_every=5", "checkpoint.every=4"), scripted(falling)
    summary, printed = run(recipe, engine)
    assert engine.steps == list(range(1, 13))
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}
    assert curve(tmp_path, "validation/loss") == {5: 2.0, 10: 2.0, 12: 2.0}
    assert saved(tmp_path) == [8, 12], "keep is 2"
    assert kinds(tmp_path) == ["start", "checkpoint", "checkpoint", "finished", "checkpoint"]
    assert {name: summary[name] for name in ("name", "steps", "tokens", "parameters")} == {
        "name": "tiny",
        "steps": 12,
        "tokens": 12 * 8 * 32,
        "parameters": parameters(prepared),
    }
    assert (summary["first_loss"], summary["last_loss"], summary["last_validation_loss"]) == (6.0, 0.5, 2.0)
    assert summary["recent_loss"] == pytest.approx(sum(falling(step) for step in range(1, 13)) / 12)
    assert "step  1/12  loss 6" in printed
    assert "step 5: validation loss 2.0000 on " in printed
    assert "step 12/12  loss 0.5" in printed
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_every_step_has_the_rate_of_the_schedule(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    engine = scripted(falling)
    run(recipe_of("train.schedule={name: linear, warmup_steps: 4, final_ratio: 0.2}"), engine)
    wanted = [learning_rate(step, name="linear", peak=3e-3, steps=12, warmup_steps=4, final_ratio=0.2) for step in range(12)]
    assert engine.rates == wanted == list(curve(tmp_path, "train/learning_rate").values())
    assert (engine.rates[0], engine.rates[3], engine.rates[-1]) == (3e-3 / 4, 3e-3, 3e-3 * 0.2)


def test_the_speed_is_tokens_by_the_time_of_the_steps(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    summary, _ = run(recipe_of(), scripted(falling))
    seconds = sum(curve(tmp_path, "time/step").values())
    assert summary["tokens_per_second"] == pytest.approx(12 * 8 * 32 / seconds, rel=1e-9)
    for step, speed in curve(tmp_path, "train/tokens_per_second").items():
        assert speed == pytest.approx(8 * 32 / curve(tmp_path, "time/step")[step], rel=1e-9)
    assert all(0 < wait <= curve(tmp_path, "time/step")[step] for step, wait in curve(tmp_path, "time/data_wait").items())
    assert all(value > 1e6 for value in curve(tmp_path, "memory/resident_bytes").values())
    assert "train/loss_scale" not in store.names(tmp_path / "metrics.sqlite")


def test_the_validation_is_held_against_the_mean_of_recent_losses(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path
) -> None:
    """Losses that swing by a factor of three from batch to batch do not make the ratio swing."""
    engine = scripted(lambda step: 1.0 if step % 2 else 3.0, lambda _step: 2.2)
    _, printed = run(recipe_of("train.steps=41", "train.evaluate_every=1", "watch.print_every=1"), engine)
    ratios = curve(tmp_path, "validation/ratio")
    assert ratios[1] == pytest.approx(2.2)
    assert ratios[2] == pytest.approx(1.1)
    assert [ratios[step] for step in range(20, 42)] == pytest.approx([1.1] * 22), "20 steps"
    assert "step 41/41  loss 1.000  val 2.200 (×1.10)" in printed


def test_old_losses_leave_the_mean(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    run(recipe_of("train.steps=30", "train.evaluate_every=30"), scripted(lambda step: 100.0 if step <= 10 else 4.0))
    assert curve(tmp_path, "validation/ratio") == {30: 0.5}


def test_nothing_held_out(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    recipe = recipe_of("data.validation_fraction=0")
    data = prepare(recipe, tmp_path / "data", lambda _line: None)
    summary, printed = run(recipe, scripted(falling), tmp_path, data)
    assert summary["last_validation_loss"] is None
    assert "val" not in printed.split("step  1/12")[1]
    assert not [name for name in store.names(tmp_path / "metrics.sqlite") if name.startswith("validation")]


# --- going on ----------------------------------------------------------------------------------------------------------------


def test_a_resume_goes_on_where_the_checkpoint_stands(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def cut_off(step: int) -> float:
        if step == 8:
            raise ZeroDivisionError  # as a crash of the process: nothing handles it
        return falling(step)

    recipe = recipe_of("checkpoint.every=5", "train.evaluate_every=3")
    with pytest.raises(ZeroDivisionError):
        run(recipe, scripted(cut_off))
    engine = scripted(falling)
    summary, printed = run(recipe, engine)
    assert engine.steps == list(range(6, 13))
    assert engine.weight == 12
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}
    assert (summary["first_loss"], summary["last_loss"], summary["tokens"]) == (6.0, 0.5, 12 * 8 * 32)
    assert [segment.first_step for segment in store.segments(tmp_path / "metrics.sqlite")] == [1, 6]
    assert kinds(tmp_path) == ["start", "checkpoint", "resume", "checkpoint", "finished", "checkpoint"]
    assert "resumed  after step 5 of 12" in printed
    other = tmp_path / "uninterrupted"
    other.mkdir()
    run(recipe, scripted(falling), other)
    assert curve(other, "validation/ratio") == curve(tmp_path, "validation/ratio")
    position, again = state(tmp_path)["position"], state(other)["position"]
    assert position.pop("step_seconds") > 0
    assert again.pop("step_seconds") > 0
    assert position == again


def test_a_checkpoint_comes_after_the_curves_up_to_it(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """Else a kill within a second of a checkpoint would leave a hole that no resume fills."""
    engine, seen = scripted(falling), []
    engine.before_save = lambda _folder: seen.append(
        (max(curve(tmp_path)), len(curve(tmp_path)), len(curve(tmp_path, "validation/loss")), kinds(tmp_path)[-1])
    )
    run(recipe_of("checkpoint.every=4", "train.evaluate_every=4"), engine)
    assert [each[:3] for each in seen] == [(4, 4, 1), (8, 8, 2), (12, 12, 3)]
    assert seen[-1][3] == "finished"


def test_a_finished_run_is_left_as_it_is(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    first, _ = run(recipe_of(), scripted(falling))
    before = kinds(tmp_path)
    engine = scripted(falling)
    again, printed = run(recipe_of(), engine)
    assert engine.steps == []
    assert again == first
    assert printed == "already trained: 12 of 12 steps\n"
    assert kinds(tmp_path) == before
    assert len(store.segments(tmp_path / "metrics.sqlite")) == 1


def test_resumable_settings_may_change(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def interrupted(step: int) -> float:
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return falling(step)

    with pytest.raises(Interrupted):
        run(recipe_of("checkpoint.keep=5", "checkpoint.every=2"), scripted(interrupted))
    assert saved(tmp_path) == [2, 4, 6]
    run(recipe_of("checkpoint.keep=1", "checkpoint.every=5", "train.evaluate_every=11"), scripted(falling))
    assert saved(tmp_path) == [12]
    assert list(curve(tmp_path, "validation/loss")) == [11, 12]


def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path
) -> None:
    recipe = recipe_of("checkpoint.every=4")
    run(recipe, scripted(falling))
    (tmp_path / "checkpoints" / "step-00000012" / "weights.json").write_text("13")
    (tmp_path / "checkpoints" / "step-00000016.partial").mkdir()
    engine = scripted(falling)
    _, printed = run(recipe, engine)
    assert engine.steps == [9, 10, 11, 12]
    assert "step-00000012 is damaged (weights.json was altered since it was written)" in printed
    resume = next(event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "resume")
    assert "step-00000012 is damaged" in resume.message
    assert resume.message.endswith("; resumed from step-00000008")
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000008", "step-00000012", "step-00000012.damaged"]
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}


def test_all_checkpoints_damaged(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    run(recipe_of("checkpoint.every=4"), scripted(falling))
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "weights.json").unlink()
    for _ in range(2):
        engine = scripted(falling)
        with pytest.raises(UserError, match="all 2 checkpoints are damaged"):
            run(recipe_of(), engine)
        assert engine.steps == []
    assert kinds(tmp_path).count("start") == 1


def test_other_data_than_the_checkpoint_was_trained_on(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, prepared: Prepared, refusal: Callable[..., str]
) -> None:
    run(recipe_of("checkpoint.every=4"), scripted(falling))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"the cat sees {n} dogs . " * 20}) + "\n" for n in range(200)))
    recipe = recipe_of(f"data.sources=[{{path: {other}}}]")
    changed = prepare(recipe, tmp_path / "data", lambda _line: None)
    with pytest.raises(UserError) as caught:
        run(recipe_of(), scripted(falling), tmp_path, changed)
    text = refusal(caught)
    assert "step-00000012 was trained on other data than" in text
    assert "bring the data back" in text
    shutil.copytree(prepared.folder, tmp_path / "copy")
    summary, _ = run(recipe_of(), scripted(falling), tmp_path, Prepared.open(tmp_path / "copy"))
    assert summary["steps"] == 12, "the same data elsewhere is the same data"


# --- interrupted -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_once(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, number: int, capfd: Any) -> None:
    done: list[int] = []

    def interrupted(step: int) -> float:
        if step == 7:
            os.kill(os.getpid(), number)
        done.append(step)
        return falling(step)

    with pytest.raises(Interrupted) as caught:
        run(recipe_of("checkpoint.every=5"), scripted(interrupted))
    assert caught.value.exit_code == 130
    assert str(caught.value) == "stopped after step 7 of 12 with a checkpoint; run the same command to go on"
    assert done == [1, 2, 3, 4, 5, 6, 7], "the step was finished, and no other was begun"
    assert saved(tmp_path) == [5, 7]
    assert kinds(tmp_path) == ["start", "checkpoint", "checkpoint", "interrupted"]
    assert "finishing this step and saving" in capfd.readouterr().err
    engine = scripted(falling)
    run(recipe_of("checkpoint.every=5"), engine)
    assert engine.steps == [8, 9, 10, 11, 12]
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}


def test_the_summary_of_an_interrupted_run(recipe_of: RecipeOf, scripted: Any, tmp_path: Path, prepared: Prepared) -> None:
    import io

    from danlu.recipe import resolve_shape
    from danlu.train.loop import train

    def interrupted(step: int) -> float:
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return falling(step)

    recipe, stream = recipe_of("train.evaluate_every=5"), io.StringIO()
    with pytest.raises(Interrupted):
        train(recipe, resolve_shape(recipe, prepared.vocab_size), scripted(interrupted), prepared, tmp_path, stream)
    rows = [line.split(maxsplit=1) for line in stream.getvalue().splitlines()[-5:]]
    mean = sum(falling(step) for step in range(1, 7)) / 6
    assert rows[0] == ["stopped", "after 6 of 12 steps, 1.5k tokens"]
    assert rows[1] == ["loss", f"6.000 at the first step, {mean:.3f} in the mean of the last 6"]
    assert rows[2] == ["validation", "loss 2.000 on text held out"]
    assert rows[3][0] == "speed"
    assert rows[4] == ["checkpoint", "after step 6"]


def test_interrupted_twice(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def interrupted(step: int) -> float:
        if step == 7:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the step went on")
        return falling(step)

    with pytest.raises(KeyboardInterrupt):
        run(recipe_of("checkpoint.every=5"), scripted(interrupted))
    assert saved(tmp_path) == [5]
    assert kinds(tmp_path) == ["start", "checkpoint", "interrupted"]
    assert max(curve(tmp_path)) == 6
    run(recipe_of("checkpoint.every=5"), scripted(falling))
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}


def test_interrupted_in_the_last_step(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def interrupted(step: int) -> float:
        if step == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return falling(step)

    summary, _ = run(recipe_of(), scripted(interrupted))
    assert summary["steps"] == 12
    assert "interrupted" not in kinds(tmp_path)


# --- steps that are not finite -----------------------------------------------------------------------------------------------


def test_three_in_a_row_stop_the_run(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    losses = [5.0, NAN, NAN, 4.0, NAN, NAN, NAN]
    engine = scripted(lambda step: losses[step - 1])
    with pytest.raises(RunStopped) as caught:
        run(recipe_of("checkpoint.every=6"), engine)
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith("3 steps in a row were not finite and were skipped; stopped after step 7. Checkpoint 7 ")
    assert "a lower train.optimizer.learning_rate, or delete the newest checkpoints" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert engine.weight == 2
    assert saved(tmp_path) == [7], "none at step 6, amid skipped ones"
    assert state(tmp_path)["position"]["non_finite"] == 3
    skipped = [event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "skipped_step"]
    assert [event.step for event in skipped] == [2, 3, 5, 6, 7]
    assert skipped[0].message == "step 2 skipped: the loss is not finite"
    assert kinds(tmp_path)[-1] == "stop"
    found = curve(tmp_path)
    assert [step for step, loss in found.items() if math.isnan(loss)] == [2, 3, 5, 6, 7]


def blown_up(step: int) -> float:
    return falling(step) if step <= 5 else NAN


def test_a_run_that_blew_up_keeps_all_it_had(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """Its last weights may have been ruined by a finite step: no good checkpoint goes for them, however often it is run."""
    recipe = recipe_of("checkpoint.every=2", "checkpoint.keep=2")
    with pytest.raises(RunStopped, match=r"^3 steps in a row .* after step 8\. Checkpoint 8 holds the weights"):
        run(recipe, scripted(blown_up))
    assert saved(tmp_path) == [2, 4, 8]
    for _ in range(3):
        engine = scripted(blown_up)
        with pytest.raises(RunStopped, match=r"^4 steps in a row .* after step 9\. Checkpoint 8 holds"):
            run(recipe, engine)
        assert (engine.steps, engine.weight) == ([9], 5)
        assert saved(tmp_path) == [2, 4, 8]
    run(recipe, scripted(falling))
    assert saved(tmp_path) == [10, 12], "after finite steps the old ones go again"


def test_nothing_is_saved_again_that_is_saved(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"after step 8\. Checkpoint 5 holds the weights as they were before the first of"):
        run(recipe_of("checkpoint.every=5"), scripted(blown_up))
    assert saved(tmp_path) == [5]


def test_an_interrupt_amid_them_loses_nothing(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def interrupted(step: int) -> float:
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return blown_up(step)

    with pytest.raises(Interrupted, match="stopped after step 7 of 12 with a checkpoint"):
        run(recipe_of("checkpoint.every=2"), scripted(interrupted))
    assert saved(tmp_path) == [2, 4, 7]
    engine = scripted(blown_up)
    with pytest.raises(RunStopped, match=r"^3 steps in a row .* after step 8\. Checkpoint 7 holds"):
        run(recipe_of("checkpoint.every=2"), engine)
    assert engine.steps == [8]


def test_a_last_step_that_is_skipped_is_saved(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """Else the run would never be finished."""
    recipe = recipe_of("checkpoint.every=5")
    run(recipe, scripted(lambda step: NAN if step > 10 else falling(step)))
    assert saved(tmp_path) == [5, 10, 12]
    assert "already trained" in run(recipe, scripted(falling))[1]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_a_setting(run: Run, recipe_of: RecipeOf, scripted: Any, limit: int) -> None:
    engine = scripted(lambda step: NAN if step > 3 else 5.0)
    with pytest.raises(RunStopped, match=f"{limit} steps in a row"):
        run(recipe_of(f"train.non_finite_limit={limit}"), engine)
    assert engine.steps == list(range(1, 4 + limit))


def test_overflows_of_the_loss_scale_are_told_and_not_counted(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path
) -> None:
    def overflow(step: int) -> StepResult:
        return StepResult(5.0, 256, math.inf, "loss scale overflow" if step < 6 else None, 2.0 ** (16 - step))

    _, printed = run(recipe_of("train.precision=fp16"), scripted(overflow))
    assert kinds(tmp_path).count("skipped_step") == 5
    assert "step 5: loss scale overflow; the update was skipped" in printed
    assert curve(tmp_path, "train/loss_scale") == {step: 2.0 ** (16 - step) for step in range(1, 13)}
    event = next(event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "skipped_step")
    assert event.data == {"loss_scale": 2.0**15}


def test_batches_without_targets_are_told_and_not_counted(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def empty(step: int) -> StepResult | float:
        return falling(step) if step > 6 else StepResult(math.nan, 0, 0.0, NOTHING_SUPERVISED, 1.0)

    engine = scripted(empty)
    summary, printed = run(recipe_of(), engine)
    assert kinds(tmp_path).count("skipped_step") == 6
    assert "step 6: no token of the batch has a target; the update was skipped" in printed
    assert engine.weight == 6 and summary["first_loss"] == falling(7)
    assert state(tmp_path)["position"]["non_finite"] == 0


def test_the_summary_is_of_finite_losses(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    """It goes into a JSON file, which has no NaN, and a single bad batch at either end says nothing of the run."""
    engine = scripted(lambda step: NAN if step in (1, 12) else falling(step), lambda _step: math.inf)
    summary, _ = run(recipe_of("train.evaluate_every=6"), engine)
    assert (summary["first_loss"], summary["last_loss"], summary["last_validation_loss"]) == (3.0, falling(11), None)
    assert curve(tmp_path, "validation/loss") == {6: math.inf, 12: math.inf}


def test_not_one_finite_step(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"stopped after step 3\. Checkpoint 3 "):
        run(recipe_of("train.evaluate_every=1"), scripted(lambda _step: NAN))
    assert curve(tmp_path, "validation/ratio") == {}
    assert state(tmp_path)["position"]["first_loss"] is None


# --- share of the peak -------------------------------------------------------------------------------------------------------


def with_peak(engine: Any, peak: float | None, device: str = "cpu") -> Any:
    engine.matmul_peak, engine.device = lambda: peak, device
    return engine


def cut_off(step: int) -> float:
    if step == 8:
        raise ZeroDivisionError
    return falling(step)


@pytest.mark.parametrize(
    ("device", "measured", "wanted"), [("cpu", 1e15, 3e15), ("cpu", 5e15, 5e15), ("cuda:0", 1e15, 1e15), ("cpu", None, None)]
)
def test_the_largest_peak_of_a_device_stays(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, device: str, measured: float | None, wanted: float | None
) -> None:
    """What is measured falls with the load of the machine, and a share of it would rise."""
    recipe = recipe_of("checkpoint.every=5")
    with pytest.raises(ZeroDivisionError):
        run(recipe, with_peak(scripted(cut_off), 3e15))
    assert state(tmp_path)["position"]["peak"] == 3e15
    _, printed = run(recipe, with_peak(scripted(falling), measured, device))
    position = state(tmp_path)["position"]
    assert (position["peak"], position["peak_device"]) == (wanted, device)
    infos = [segment.info for segment in store.segments(tmp_path / "metrics.sqlite")]
    assert [info["peak"] for info in infos] == [3e15, wanted]
    assert (f"matmul peak {wanted / 1e9:,.0f} GFLOP/s" if wanted else f"{device}, fp32\n") in printed


def test_no_step_is_faster_than_the_peak(
    run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path, prepared: Prepared
) -> None:
    from danlu.model.counts import flops_per_token
    from danlu.recipe import resolve_shape

    _, printed = run(recipe_of("watch.print_every=1"), with_peak(scripted(falling), 1.0))
    speeds = list(curve(tmp_path, "train/tokens_per_second").values())
    shares = list(curve(tmp_path, "train/mfu").values())
    assert shares[0] == 1.0
    highest = [max(speeds[: step + 1]) for step in range(12)]
    assert shares == pytest.approx([speed / high for speed, high in zip(speeds, highest, strict=True)])
    assert "MFU 100.0%" in printed
    flops = flops_per_token(resolve_shape(recipe_of(), prepared.vocab_size), 32)
    assert state(tmp_path)["position"]["peak"] == pytest.approx(max(speeds) * flops)


def test_without_a_peak_there_is_no_share(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    _, printed = run(recipe_of(), with_peak(scripted(falling), None))
    assert "MFU" not in printed and "matmul peak" not in printed
    assert "train/mfu" not in store.names(tmp_path / "metrics.sqlite")


# --- what a person is warned of ----------------------------------------------------------------------------------------------


def test_settings_that_do_nothing_are_told(run: Run, recipe_of: RecipeOf, scripted: Any) -> None:
    _, printed = run(recipe_of("train.schedule={name: constant, final_ratio: 0.5}"), scripted(falling))
    assert "  ignored  train.schedule.final_ratio: 0.5 does nothing, since train.schedule.name is constant\n" in printed
    assert "ignored" not in run(recipe_of(), scripted(falling))[1]


def test_a_foreign_tokenizer_is_told_once_and_recorded(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    dimensions = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 600, **dimensions}
    (weights / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}))
    recipe = recipe_of("checkpoint.every=5").model_copy(update={"model": ModelSection(hugging_face=str(weights))})

    def importing(script: Callable[[int], float]) -> Any:
        engine = scripted(script)
        engine.import_weights = lambda _folder: engine.initialise()
        return engine

    with pytest.raises(ZeroDivisionError):
        run(recipe, importing(cut_off))
    (told,) = [event for event in store.events(tmp_path / "metrics.sqlite") if event.kind == "warning"]
    assert told.message.startswith("the run's tokenizer has ")
    assert "600 rows" in told.message
    _, printed = run(recipe, importing(falling))
    assert "warning" not in printed, "the weights come from the checkpoint by now"
    assert kinds(tmp_path).count("warning") == 1


# --- a disk that is full -----------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_run_and_loses_nothing(run: Run, recipe_of: RecipeOf, scripted: Any, tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        if "00000008" in folder.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    engine = scripted(falling)
    engine.before_save = full
    recipe = recipe_of("checkpoint.every=4")
    with pytest.raises(RunStopped, match=r"step-00000008: the checkpoint could not be written: the disk is full; the last good"):
        run(recipe, engine)
    assert saved(tmp_path) == [4]
    assert kinds(tmp_path) == ["start", "checkpoint", "stop"]
    engine = scripted(falling)
    run(recipe, engine)
    assert engine.steps == list(range(5, 13))
    assert curve(tmp_path) == {step: falling(step) for step in range(1, 13)}


@pytest.mark.parametrize(("kept", "to_come"), [(0, 3), (1, 2), (2, 1)])
def test_the_header_warns_of_a_disk_that_is_too_small(
    run: Run,
    recipe_of: RecipeOf,
    scripted: Any,
    tmp_path: Path,
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
    to_come: int,
) -> None:
    """AdamW in FP32 keeps 12 bytes a parameter; two checkpoints are kept, and the next one is written before one goes."""
    needed = to_come * 12 * parameters(prepared)
    recipe = recipe_of("checkpoint.every=1")

    def interrupted(step: int) -> float:
        if step == kept:
            os.kill(os.getpid(), signal.SIGTERM)
        return falling(step)

    (tmp_path / "enough").mkdir()
    if kept:
        with pytest.raises(Interrupted):
            run(recipe, scripted(interrupted), tmp_path / "enough")
    shutil.copytree(tmp_path / "enough", tmp_path / "short")
    monkeypatch.setattr("danlu.train.header.probes.disk_free_bytes", lambda _folder: needed)
    assert "warning" not in run(recipe, scripted(falling), tmp_path / "enough")[1]
    monkeypatch.setattr("danlu.train.header.probes.disk_free_bytes", lambda _folder: needed - 1)
    _, printed = run(recipe, scripted(falling), tmp_path / "short")
    assert "of disk free, but the checkpoints to come need" in printed


def test_every_step_gets_its_own_batch(run: Run, recipe_of: RecipeOf, scripted: Any, prepared: Prepared) -> None:
    from danlu.data.batches import TrainingBatches

    recipe, seen = recipe_of("memory.micro_batch=2"), []
    engine = scripted(falling)
    train_step = engine.train_step
    engine.train_step = lambda batch, rate: seen.append(batch) or train_step(batch, rate)
    run(recipe, engine)
    source = TrainingBatches(
        prepared.train, sequence_length=32, global_batch=8, micro_batch=2, document_mask=True, seed=recipe.train.seed
    )
    assert len(seen) == 12
    for step, batch in enumerate(seen):
        assert batch["inputs"].shape == (4, 2, 32)
        assert np.array_equal(batch["inputs"], source[step]["inputs"])
