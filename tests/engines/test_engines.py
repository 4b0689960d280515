"""The choice of an engine by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from danlu import engines
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, parse

SHAPE = ModelShape(vocab_size=32, layers=1, hidden_size=16, ffn_size=32, heads=2)


def recipe(*overrides: str) -> Recipe:
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x.txt"}]}}
    return parse(tree, ["train.device=cpu", *overrides])


def test_torch_is_the_default() -> None:
    engine = engines.create(recipe(), SHAPE)
    assert engine.device == "cpu"
    assert "torch" in engine.versions()


@pytest.mark.parametrize(
    "override",
    [
        *("parallel.pipeline=2 memory.micro_batch=1 parallel.schedule=zero-bubble", "parallel.tensor=2 train.compile=true"),
        *("memory.offload_optimizer=disk", "memory.offload_optimizer=host"),
        *("parallel.zero_stage=3 parallel.data=2 memory.offload_parameters=disk", "watch.memory=true"),
        "train.compile=true watch.profile=2:3",
        "memory.recompute=selective",
        *("train.precision=bf16", "train.precision=fp16"),
    ],
)
def test_what_paddle_cannot_do_names_the_field_and_a_way_out(override: str) -> None:
    field = override.split()[-1].partition("=")[0]
    with pytest.raises(UserError, match=rf"{field}.*train\.engine=torch"):
        engines.check(recipe("train.engine=paddle", *override.split()))


def test_interleaving_two_ranks_of_a_pipeline_is_refused_by_paddle() -> None:
    overrides = ("model.layers=4", "parallel.pipeline=2", "parallel.schedule=interleaved", "memory.micro_batch=1")
    with pytest.raises(UserError, match=r"parallel\.schedule: interleaved takes 3 pipeline ranks or more in paddle, not 2"):
        engines.check(recipe("train.engine=paddle", *overrides))


@pytest.mark.parametrize(
    "override",
    [
        *("parallel.data=2 parallel.zero_stage=2", "parallel.data=2 parallel.zero_stage=3", "parallel.pipeline=2"),
        *("parallel.tensor=2", "parallel.tensor=2 parallel.sequence_parallel=true"),
    ],
)
def test_layouts_of_paddle(override: str) -> None:
    engines.check(recipe("train.engine=paddle", "model.layers=2", "memory.micro_batch=1", *override.split()))


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_a_framework_that_is_not_installed_is_named_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *rest: None if wanted == name else found(wanted, *rest))
    with pytest.raises(UserError, match=rf"{name} is not installed.*pip install 'danlu\[{name},data\]'"):
        engines.create(recipe(f"train.engine={name}"), SHAPE)


def test_the_version_is_that_of_whichever_package_brings_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engines.version(recipe()) == metadata.version("torch")
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"paddle": ["paddlepaddle-gpu"]})
    monkeypatch.setattr(metadata, "version", {"paddlepaddle-gpu": "3.3.1"}.__getitem__)
    assert engines.version(recipe("train.engine=paddle")) == "3.3.1"


def test_importing_the_room_loads_no_framework() -> None:
    code = "import sys, danlu.engines, danlu.engines.base; print([m for m in ('torch', 'paddle') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
