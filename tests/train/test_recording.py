"""What a run records of its steps beside loss and speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import curve

from danlu.engines.base import Observed, StepResult, TensorSums
from danlu.errors import UserError
from danlu.recipe import Recipe
from danlu.train.recording import tensor_signals
from danlu.watch import facts, names, store
from danlu.watch.profile import profiles

Of = Callable[..., Any]
RecipeOf = Callable[..., Recipe]


@pytest.fixture
def trained(recipe_of: RecipeOf, run: Of, torch_engine: Of, tmp_path: Path) -> Path:
    every = ("watch.statistics_every=4", "watch.histograms_every=6", "watch.system_every=5", "train.evaluate_every=6")
    recipe = recipe_of("train.schedule.warmup_steps=1", *every)
    run(recipe, torch_engine(recipe))
    return tmp_path


def test_every_signal_is_in_the_list(trained: Path) -> None:
    """NAME stands for a tensor's name; what has no place in the list has no meaning for a reader."""
    listed = {signal.replace("NAME", "*") for signal in names.SIGNALS}
    for kind in names.TENSOR_KINDS:
        listed |= {f"layer/*/{kind}_{statistic}" for statistic in names.TENSOR_STATISTICS} | {f"layer/*/{kind}"}
    metrics = trained / "metrics.sqlite"
    for name in store.names(metrics) + store.histogram_names(metrics):
        signal = name.partition("@")[0]
        parts = signal.split("/")
        general = f"layer/*/{parts[-1]}" if parts[0] == "layer" else signal
        assert general in listed, name


def test_the_parts_of_a_step_are_the_step(trained: Path) -> None:
    whole = curve(trained, "time/step")
    parts = [curve(trained, f"time/{part}") for part in ("data_wait", "forward", "backward", "optimizer", "other")]
    assert all(part.keys() == whole.keys() for part in parts)
    for step, seconds in whole.items():
        assert sum(part[step] for part in parts) == pytest.approx(seconds, rel=1e-6)
        assert parts[1][step] > 0 and parts[2][step] > 0
    assert "time/communication" not in store.names(trained / "metrics.sqlite")


def test_statistics_come_when_they_are_due(trained: Path) -> None:
    """Every 4 steps, and with the histograms of every 6."""
    tensor = "layer/model.layers.1.mlp.down_proj.weight"
    assert list(curve(trained, f"{tensor}/gradient_rms")) == [4, 6, 8, 12]
    assert store.histograms(trained / "metrics.sqlite", f"{tensor}/gradient").steps.tolist() == [6, 12]
    assert list(curve(trained, "tokens/supervised_share")) == [4, 6, 8, 12]
    assert list(curve(trained, "system/cpu_cores@0")) == [5, 10]
    norms = [curve(trained, name)[4] for name in store.names(trained / "metrics.sqlite") if name.endswith("/gradient_norm")]
    total = curve(trained, "train/gradient_norm")
    assert math.sqrt(sum(norm**2 for norm in norms if norm != total[4])) == pytest.approx(total[4], rel=1e-5)


def test_figures_that_follow_from_others(trained: Path) -> None:
    loss, perplexity = curve(trained), curve(trained, "train/perplexity")
    assert all(perplexity[step] == pytest.approx(math.exp(loss[step])) for step in loss)
    norms, rate = curve(trained, "train/gradient_norm"), curve(trained, "train/clip_rate")
    clipped = [norm > 1.0 for norm in norms.values()]
    assert list(rate.values()) == pytest.approx([np.mean(clipped[: at + 1]) for at in range(len(clipped))])


def test_sums_become_figures() -> None:
    spread = np.zeros((2, 256), dtype=np.int64)
    spread[0, 127], spread[1, 255] = 3, 1  # three entries in [1, sqrt 2), one that is not finite
    observed = Observed(
        {
            ("parameter", "a"): TensorSums(4, 2.0, 16.0, 3.0, 1, spread),
            ("gradient", "a"): TensorSums(4, 0.0, 4.0, 1.5, 0, None),
            ("update", "a"): TensorSums(4, 0.0, 0.16, 0.3, 0, None),
            ("activation", "m"): TensorSums(2, math.nan, math.nan, 1.0, 0, None),
        },
        {"m": 7.5},
    )
    values, spreads = tensor_signals(observed)
    assert values["layer/a/parameter_rms"] == 2.0 and values["layer/a/parameter_mean"] == 0.5
    assert values["layer/a/parameter_max"] == 3.0 and values["layer/a/parameter_zeros"] == 0.25
    assert values["layer/a/gradient_norm"] == 2.0
    assert values["layer/a/update_ratio"] == pytest.approx(0.2 / 2.0)
    assert math.isnan(values["layer/m/activation_max"]), "the largest of what holds a NaN is not known"
    assert values["layer/m/attention_logit_max"] == 7.5
    found = spreads["layer/a/parameter"]
    assert found.not_finite == 1 and found.counts[found.edges[1:] > 1][0] == 3


def test_skipped_steps_are_counted_over_a_resume(run: Of, scripted: Any, recipe_of: RecipeOf, tmp_path: Path) -> None:
    def script(step: int) -> float | StepResult:
        return StepResult(math.nan, 8, 1.0, "the loss is not finite", 1.0) if step in (2, 5) else 3.0

    for steps in (4, 8):
        run(recipe_of(f"train.steps={steps}"), scripted(script), tmp_path)
    assert list(curve(tmp_path, "train/skipped_steps").values()) == [0, 1, 1, 1, 2, 2, 2, 2]


def test_profiled_steps_train_as_others(recipe_of: RecipeOf, run: Of, torch_engine: Of, tmp_path: Path) -> None:
    plain, profiled = recipe_of("train.steps=6"), recipe_of("train.steps=6", "watch.profile=3:4")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    run(plain, torch_engine(plain), tmp_path / "a")
    said = run(profiled, torch_engine(profiled), tmp_path / "b")[1]
    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    assert f"read it with: danlu profile {tmp_path / 'b'}" in said
    (found,) = profiles(tmp_path / "b")
    assert found.steps == [3, 4] and found.compute > 0 and found.memory_peak > 0
    assert any(row.name == "aten::mm" for row in found.operators)
    parts = (found.data_wait, found.communication, found.compute, found.memory, found.idle)
    assert sum(parts) == pytest.approx(found.step, rel=0.05)


def test_a_profile_that_cannot_be_written_costs_no_run(recipe_of: RecipeOf, run: Of, torch_engine: Of, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file where the folder should be")
    recipe = recipe_of("train.steps=3", "watch.profile=2:2", "train.schedule.warmup_steps=1")
    summary, said = run(recipe, torch_engine(recipe))
    assert summary["steps"] == 3 and "step 2: the profile cannot be written" in said


@pytest.mark.parametrize("given", ["3", "5:4", "4:7", "0:2", "a:b"])
def test_steps_that_cannot_be_profiled_are_refused(recipe_of: RecipeOf, given: str) -> None:
    with pytest.raises(UserError, match=r"watch\.profile"):
        recipe_of("train.steps=6", f"watch.profile={given}")


def test_samples_are_made_while_it_trains_and_change_nothing(
    recipe_of: RecipeOf, run: Of, torch_engine: Of, tmp_path: Path
) -> None:
    plain = recipe_of("train.schedule.warmup_steps=1", "train.steps=8")
    sampled = recipe_of(
        "train.schedule.warmup_steps=1", "train.steps=8", "generate.every=4", "generate.prompts=[a, '']", "generate.max_tokens=5"
    )
    for name in ("plain", "sampled"):
        (tmp_path / name).mkdir()
    run(plain, torch_engine(plain), tmp_path / "plain")
    run(sampled, torch_engine(sampled), tmp_path / "sampled")
    assert curve(tmp_path / "plain") == curve(tmp_path / "sampled")
    made = [event for event in store.events(tmp_path / "sampled" / "metrics.sqlite") if event.kind == "sample"]
    assert [(event.step, event.data["prompt"]) for event in made] == [(4, "a"), (4, ""), (8, "a"), (8, "")]
    assert all(event.message.startswith(event.data["prompt"]) and len(event.message) > 1 for event in made)
    assert made[0].message != made[2].message
    shown = facts.collect(tmp_path / "sampled")["samples"]
    assert [(one["step"], one["text"]) for one in shown] == [(event.step, event.message) for event in reversed(made)]


def test_a_prompt_that_does_not_fit_is_refused_before_the_first_step(
    recipe_of: RecipeOf, run: Of, torch_engine: Of, tmp_path: Path
) -> None:
    recipe = recipe_of("generate.every=4", f"generate.prompts=['{'furnace ' * 4000}']")
    with pytest.raises(UserError, match=r"generate.prompts\[0\]"):
        run(recipe, torch_engine(recipe), tmp_path)
