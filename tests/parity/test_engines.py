"""Both engines train the same model, a checkpoint changes engines on the way, and where they part the place is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.compare import first
from danlu.compare.engines import lines
from danlu.compare.steps import TRACE

FAULTS = Path(__file__).parents[1] / "faults"
MODEL = {"layers": 2, "hidden_size": 32, "ffn_size": 64, "heads": 4, "kv_heads": 2, "max_sequence_length": 128}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    records = [{"text": f"the quick brown fox {number} 炉火 纯青 " * (number % 7 + 1)} for number in range(300)]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    tree = {
        "name": "engines",
        "model": MODEL,
        "data": {
            "sources": [{"path": str(folder / "corpus.jsonl")}],
            "tokenizer": {"train": {"vocab_size": 300}},
            "sequence_length": 32,
        },
        "train": {"device": "cpu", "steps": 50, "global_batch": 8, "optimizer": {"learning_rate": 5e-3}},
        "memory": {"micro_batch": 4},
    }
    (folder / "recipe.yaml").write_text(json.dumps(tree))
    return folder / "recipe.yaml"


def compared(recipe: Path, *arguments: str, fault: str | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit code, answer and what was said besides."""
    command = [sys.executable, "-m", "danlu", "compare-engines", str(recipe), "--runs", str(recipe.parent), "--json", *arguments]
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if fault is not None:
        environment |= {"DANLU_FAULT": fault, "PYTHONPATH": os.pathsep.join([str(FAULTS), *before])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}, ended.stderr


@pytest.mark.slow
def test_fifty_steps_are_equal_also_with_a_change_of_engine_halfway(recipe: Path) -> None:
    code, answer, said = compared(recipe)
    assert code == 0, said
    assert answer["equal"] and answer["steps"] == 50 and answer["swapped_at"] == 25
    assert [way["way"] for way in answer["ways"]] == ["paddle", "torch, then paddle", "paddle, then torch"]
    assert answer["worst_loss_gap"] <= 1e-4 and answer["worst_norm_gap"] <= 1e-3 and answer["worst_weight_gap"] <= 1e-3
    curves = answer["losses"]
    assert all(len(curve) == 50 for curve in curves.values()) and curves["torch"][-1] < 0.7 * curves["torch"][0]
    assert answer["first_difference"] is None
    # Two frameworks never round alike: equal numbers would mean that one of them had computed both.
    assert curves["torch"] != curves["paddle"]


@pytest.mark.slow
def test_a_planted_fault_is_found_and_its_layer_named(recipe: Path) -> None:
    code, answer, _ = compared(recipe, "--steps", "1", fault="head_gradient")
    assert code == 1 and not answer["equal"]
    found = answer["first_difference"]
    assert (found["step"], found["what"], found["where"]) == (1, "gradient", "lm_head.weight")
    assert found["gap"] == pytest.approx(0.05, rel=0.01)
    assert "the gradient of lm_head.weight differs by 5.0e-02" in lines(answer)[0]


def test_more_steps_than_the_recipe_has_are_refused(recipe: Path) -> None:
    code, _, said = compared(recipe, "--steps", "51")
    assert code == 2 and "--steps 51 is more than train.steps (50)" in said


@pytest.fixture
def traces(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Two traces of a model with two layers, the second with parts changed."""

    def make(**changed: Any) -> tuple[Path, Path]:
        random = np.random.default_rng(0)
        names = ["a.weight", "b.weight"]
        parts = {part: {name: random.normal(size=(30, 20)) for name in names} for part in ("outputs", "gradients", "updates")}
        for number, folder in enumerate((tmp_path / "one", tmp_path / "other")):
            folder.mkdir()
            for part, arrays in parts.items():
                with_faults = {name: changed[part](name, array) for name, array in arrays.items()} if part in changed else arrays
                np.savez(folder / TRACE.format(part), **(with_faults if number else arrays))
        return tmp_path / "one", tmp_path / "other"

    return make


def of_b(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[str, np.ndarray], np.ndarray]:
    return lambda name, array: change(array) if name == "b.weight" else array


@pytest.mark.parametrize("part", ["outputs", "gradients", "updates"])
def test_the_first_part_that_differs_is_named(part: str, traces: Callable[..., tuple[Path, Path]]) -> None:
    found = first.difference(*traces(**{part: of_b(lambda array: 1.01 * array)}))
    assert found is not None and (found["what"], found["where"]) == (part.removesuffix("s"), "b.weight")
    assert found["gap"] == pytest.approx(0.01, rel=0.02)


def test_rounding_is_no_difference(traces: Callable[..., tuple[Path, Path]]) -> None:
    rounded = of_b(lambda array: array * (1 + 1e-6))
    assert first.difference(*traces(outputs=rounded, gradients=rounded, updates=rounded)) is None


def test_a_number_that_is_none_is_a_difference(traces: Callable[..., tuple[Path, Path]]) -> None:
    found = first.difference(*traces(outputs=of_b(lambda array: np.full_like(array, np.nan))))
    assert found is not None and found["where"] == "b.weight"
