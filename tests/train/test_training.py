"""Training with the real engine inside this process: that it learns, accumulates, stops and goes on bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.data.prepared import Prepared
from danlu.engines.base import Engine
from danlu.errors import RunStopped, UserError
from danlu.recipe import Recipe
from danlu.train import checkpoint
from danlu.watch import store

Run = Callable[..., tuple[dict[str, Any], str]]
RecipeOf = Callable[..., Recipe]
EngineOf = Callable[[Recipe], Engine]
CURVES = ("train/loss", "train/gradient_norm", "train/learning_rate", "validation/loss", "validation/ratio")


def curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    found = {name: store.series(folder / "metrics.sqlite", name) for name in CURVES}
    return {name: (steps.tolist(), values.tolist()) for name, (steps, values) in found.items()}


def weights(folder: Path) -> dict[str, bytes]:
    """The last checkpoint's tensors; its state.json holds times, which no two runs share."""
    found = checkpoint.latest(folder / "checkpoints", lambda line: pytest.fail(line))
    assert found is not None
    return {path.name: path.read_bytes() for path in sorted(found.path.glob("*.safetensors"))}


@pytest.fixture
def trained(run: Run, torch_engine: EngineOf, tmp_path: Path) -> Callable[..., Path]:
    """Train a recipe in a folder of this name; returns the folder."""

    def start(recipe: Recipe, name: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        run(recipe, torch_engine(recipe), tmp_path / name)
        return tmp_path / name

    return start


def test_the_loss_falls_to_the_entropy_of_the_text(
    run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path, prepared: Prepared
) -> None:
    """Each of a document's 12 sentences is one of 5 x 4 x 5, drawn evenly; nothing else about it is left to chance."""
    recipe = recipe_of("train.steps=150", "train.evaluate_every=50", "train.optimizer.learning_rate=1e-2")
    summary, _ = run(recipe, torch_engine(recipe))
    found = curves(tmp_path)
    held_out = prepared.validation
    entropy = 12 * math.log(100) * held_out.documents / (held_out.tokens - held_out.documents)
    assert summary["first_loss"] == found["train/loss"][1][0] > 5
    assert summary["last_loss"] == found["train/loss"][1][-1] < 1.2 * entropy
    assert found["validation/loss"][0] == [50, 100, 150]
    assert 0.95 * entropy < summary["last_validation_loss"] < 1.15 * entropy
    assert summary["last_validation_loss"] == found["validation/loss"][1][-1]
    recent = np.mean(found["train/loss"][1][-20:])
    assert found["validation/ratio"][1][-1] == pytest.approx(summary["last_validation_loss"] / recent, rel=1e-12)
    assert 0.9 < found["validation/ratio"][1][-1] < 1.1, "such text cannot be learned by heart so soon"


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_accumulation_gives_the_curve_of_the_whole_batch(
    trained: Callable[..., Path], recipe_of: RecipeOf, micro_batch: int
) -> None:
    whole = curves(trained(recipe_of(), "whole"))
    split = curves(trained(recipe_of(f"memory.micro_batch={micro_batch}"), "split"))
    for name in CURVES:
        assert whole[name][0] == split[name][0]
        assert split[name][1] == pytest.approx(whole[name][1], abs=1e-5)
    assert whole["train/loss"][1][-1] < whole["train/loss"][1][0] - 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resume_is_bit_for_bit_in_every_precision(
    trained: Callable[..., Path], recipe_of: RecipeOf, precision: str, tmp_path: Path
) -> None:
    """Stopped by damage to all but the checkpoint after step 4, so that steps 5 to 10 are done twice."""
    recipe = recipe_of(
        "train.steps=10", "checkpoint.every=4", "checkpoint.keep=3", "train.evaluate_every=3", f"train.precision={precision}"
    )
    once = trained(recipe, "once")
    wanted, final = curves(once), weights(once)
    assert final.keys() == {"model.safetensors", "optimizer-00000.safetensors"}
    for step in (8, 10):
        (once / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    trained(recipe, "once")
    assert [segment.first_step for segment in store.segments(once / "metrics.sqlite")] == [1, 5]
    assert curves(once) == wanted
    assert weights(once) == final


def test_a_resume_is_bit_for_bit_with_all_threads(trained: Callable[..., Path], recipe_of: RecipeOf) -> None:
    """Matrices large enough to be split over threads, where an unstable order of sums would show."""
    import torch

    torch.set_num_threads(2)
    recipe = recipe_of(
        "train.steps=3",
        "checkpoint.every=1",
        "model.layers=1",
        "model.hidden_size=256",
        "train.optimizer.learning_rate=1e-3",
        "train.evaluate_tokens=64",
    )
    once = trained(recipe, "once")
    wanted, final = curves(once), weights(once)
    (once / "checkpoints" / "step-00000003" / "model.safetensors").write_bytes(b"")
    trained(recipe, "once")
    assert curves(once) == wanted
    assert weights(once) == final


def test_loader_processes_change_nothing(trained: Callable[..., Path], recipe_of: RecipeOf) -> None:
    alone, helped = trained(recipe_of("data.workers=0"), "alone"), trained(recipe_of("data.workers=2"), "helped")
    assert curves(alone) == curves(helped)
    assert weights(alone) == weights(helped)


def test_an_absurd_learning_rate_is_stopped_with_finite_weights(
    run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path
) -> None:
    recipe = recipe_of("train.optimizer.learning_rate=1e30", "train.schedule.warmup_steps=0", "checkpoint.every=1")
    with pytest.raises(RunStopped) as caught:
        run(recipe, torch_engine(recipe))
    assert caught.value.exit_code == 3
    assert "3 steps in a row were not finite and were skipped" in str(caught.value)
    assert "a learning rate that is too high" in str(caught.value)
    steps, losses = curves(tmp_path)["train/loss"]
    assert math.isfinite(losses[0])
    events = store.events(tmp_path / "metrics.sqlite")
    assert [event.step for event in events if event.kind == "skipped_step"][-3:] == steps[-3:]
    assert events[-1].kind == "stop"
    found = checkpoint.latest(tmp_path / "checkpoints", lambda line: pytest.fail(line))
    assert found is not None
    assert (found.step, steps[-1]) == (1, 4), "the newest has the weights before the first skipped step"
    from safetensors.numpy import load_file

    for name, tensor in load_file(found.path / "model.safetensors").items():
        assert np.isfinite(tensor).all(), name
    for name, tensor in load_file(found.path / "optimizer-00000.safetensors").items():
        assert np.isfinite(tensor).all(), name
    with pytest.raises(RunStopped, match=r"stopped after step 4\. Checkpoint 1 holds the weights"):
        run(recipe, torch_engine(recipe))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_weights_of_another_shape(run: Run, recipe_of: RecipeOf, torch_engine: EngineOf, tmp_path: Path) -> None:
    """The run folder refuses another recipe; a checkpoint that was put there by hand is refused by the engine."""
    recipe = recipe_of("train.steps=3")
    run(recipe, torch_engine(recipe))
    other = recipe_of("train.steps=4", "model.hidden_size=32")
    with pytest.raises(UserError, match="has shape"):
        run(other, torch_engine(other))
