"""`danlu evaluate` and `danlu generate` in several processes: what one process says, and one line for what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from danlu import recipe as recipes
from danlu.errors import UserError
from danlu.recipe import Recipe, for_inference
from danlu.run_folder import RunFolder

ROWS = 256


@pytest.fixture(scope="module")
def recipe(trained_folder: tuple[RunFolder, str]) -> Recipe:
    return trained_folder[0].load_recipe()


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "danlu", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_figures_tokens_and_errors_are_those_of_one_process(run_copy: RunFolder, danlu: Callable[..., Any]) -> None:
    greedy = ("--prompt", "炉火", "--prompt", "the ", "--temperature", "0", "--json")
    started = [
        start("evaluate", run_copy.path, "parallel.pipeline=2", "--json"),
        start("generate", run_copy.path, "parallel={tensor: 2, pipeline: 2}", *greedy),
        start("generate", run_copy.path, "parallel={data: 2, zero_stage: 3}", "--prompt", "the " * 500),
    ]
    evaluation = json.loads(danlu("evaluate", run_copy.path, "--json").out)
    samples = json.loads(danlu("generate", run_copy.path, *greedy).out)
    refused = danlu("generate", run_copy.path, "--prompt", "the " * 500)
    outputs = [process.communicate(timeout=300) for process in started]

    assert [process.returncode for process in started] == [0, 0, 2], outputs
    found = json.loads(outputs[0][0])
    assert found.pop("loss") == pytest.approx(evaluation.pop("loss"), rel=1e-6)
    for name in ("perplexity", "bits_per_byte"):
        assert found.pop(name) == pytest.approx(evaluation.pop(name), rel=1e-5)
    assert found == evaluation
    assert json.loads(outputs[1][0]) == samples
    assert refused.code == 2 and outputs[2] == ("", refused.err)


def test_one_process_is_the_default_and_a_layout_gets_batches_that_fit(recipe: Recipe) -> None:
    assert for_inference(recipe, [], False, ROWS) == for_inference(recipe, ["parallel={}"], False, ROWS) == recipe.alone
    made = for_inference(recipe, ["parallel={pipeline: 2, data: 2, zero_stage: 1}"], False, ROWS)
    assert (made.parallel.processes, made.micro_batch, made.accumulation) == (4, ROWS // 4, 2)
    assert made.model == recipe.model and made.data == recipe.data
    assert for_inference(recipe, ["parallel.pipeline=2"], False, 1).micro_batch == 1


def test_the_runs_own_layout_keeps_its_degrees_and_no_more(recipe: Recipe) -> None:
    own = recipes.parse(
        recipe.model_dump(mode="json")
        | {
            "parallel": {"tensor": 2, "pipeline": 2, "sequence_parallel": True},
            "memory": {"micro_batch": 4, "recompute": "full"},
        }
    )
    made = for_inference(own, [], True, ROWS)
    assert (made.parallel.tensor, made.parallel.pipeline, made.parallel.sequence_parallel) == (2, 2, False)
    assert made.memory.recompute == "none"
    assert for_inference(own, ["parallel.tensor=1"], True, ROWS).parallel.processes == 2
    assert for_inference(own, [], False, ROWS) == own.alone


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.seed=3", "parallel.pipeline, parallel.zero_stage, parallel.api can be given here"),
        ("parallel.sequence_parallel=true", "only parallel.data, parallel.tensor"),
        ("parallel.schedule=interleaved", "only parallel.data, parallel.tensor"),
        ("parallel.pipeline=3", "3 makes 3 stages of 2 layers; give at most 2"),
        ("parallel.tensor=3", "parallel.tensor: 3 does not divide model.heads (4)"),
        ("parallel.zero_stage=3", "parallel.zero_stage: 3 splits over data ranks"),
        ("parallel.data=two", "parallel.data: must be"),
        ("parallel=auto", "parallel: auto is for training; give parallel.data and the like here"),
        ("memory=auto", "memory: auto is for training"),
        ("pipeline=2", "no such key; did you mean parallel.pipeline?"),
        ("parallel.pipeline", "has no path=value"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(recipe: Recipe, override: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        for_inference(recipe, [override], False, ROWS)
    assert said in str(refused.value) and "\n" not in str(refused.value)
