"""Layouts that the planner chooses for the machine on which a run is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from danlu import auto
from danlu import recipe as recipes
from danlu.errors import UserError
from danlu.plan import hardware
from danlu.run_folder import RunFolder

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine wherever the tests run."""
    monkeypatch.setattr(auto, "machine", lambda: {"cores_usable": 4, "memory_available_bytes": 16e9})


def load(path: Path, *overrides: str) -> recipes.Recipe:
    return recipes.load(path, ["train.global_batch=8", *overrides])


def test_auto_is_a_word_or_a_field_of_a_section(recipe_file: Path) -> None:
    words = load(recipe_file, "parallel=auto", "memory=auto")
    assert words.parallel.auto and words.memory.auto and words.automatic
    assert (
        load(recipe_file, "parallel=auto", "parallel.data=2").parallel
        == load(recipe_file, "parallel={data: 2, auto: true}").parallel
    )
    assert recipes.parse({**words.model_dump(exclude_unset=True), "parallel": "auto"}).parallel.auto
    assert not load(recipe_file).automatic


def test_a_recipe_that_is_not_planned_yet_is_written_as_it_was_given(recipe_file: Path, tmp_path: Path) -> None:
    """A default that is written out would be a setting to keep."""
    given = load(recipe_file, "parallel=auto", "parallel.tensor=2", "memory=auto")
    (tmp_path / "again.yaml").write_text(recipes.dump(given), encoding="utf-8")
    again = recipes.load(tmp_path / "again.yaml")
    assert again.parallel.model_fields_set == {"auto", "tensor"} and again.memory.model_fields_set <= {"auto", "micro_batch"}
    assert auto.filled(again)[0].parallel.tensor == 2


def test_the_recipe_is_filled_in_for_the_machine(recipe_file: Path) -> None:
    filled, told = auto.filled(load(recipe_file, "parallel=auto", "memory=auto"))
    assert not filled.automatic
    assert filled.parallel.processes in (1, 2, 4) and filled.memory.micro_batch is not None
    assert told[0].startswith(f"planned for {filled.parallel.processes} x cpu: ")
    assert any(line.startswith("memory:") for line in told)
    plain = load(recipe_file)
    assert auto.filled(plain) == (plain, [])


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        (["parallel=auto", "parallel.data=2", "parallel.zero_stage=1"], {"data": 2, "zero_stage": 1}),
        (["parallel=auto", "parallel.pipeline=2", "memory.micro_batch=2"], {"pipeline": 2}),
        (["memory=auto", "parallel.tensor=2", "parallel.sequence_parallel=true"], {"tensor": 2, "sequence_parallel": True}),
        (["parallel=auto", "parallel.data=8", "memory=auto", "memory.micro_batch=1"], {"data": 8}),
    ],
)
def test_what_is_given_is_kept(recipe_file: Path, overrides: list[str], kept: dict[str, Any]) -> None:
    given = load(recipe_file, *overrides)
    filled, _ = auto.filled(given)
    assert {name: getattr(filled.parallel, name) for name in kept} == kept
    if given.memory.micro_batch and "micro_batch" in given.memory.model_fields_set:
        assert filled.memory.micro_batch == given.memory.micro_batch
    if not given.memory.auto:
        assert filled.memory.recompute == given.memory.recompute


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["parallel=auto", "memory.micro_batch=3"], "parallel.auto: no layout of 1 or 2 or 4 devices goes with micro_batch 3"),
        (["parallel=auto", "parallel.data=3"], "goes with data 3, micro_batch 4, train.global_batch 8"),
        (["parallel=auto", "parallel.tensor=3"], "parallel.tensor: 3 does not divide model.heads (4)"),
        (["parallel=automatic"], "parallel: must be a section"),
        (["train=auto"], "only parallel and memory can be auto"),
    ],
)
def test_what_cannot_be_is_refused(recipe_file: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        auto.filled(load(recipe_file, *overrides))
    assert says in str(caught.value)


def test_what_does_not_fit_is_refused_with_a_way_out(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "machine", lambda: {"cores_usable": 2, "memory_available_bytes": 2e9})
    huge = ["model.layers=48", "model.hidden_size=4096", "model.ffn_size=11008", "memory=auto"]
    with pytest.raises(UserError, match=r"memory: nothing fits .* what would: ") as refused:
        auto.filled(load(recipe_file, *huge))
    assert "devices instead" not in str(refused.value)  # processes share the memory of the machine


@pytest.mark.parametrize(
    ("name", "gigabytes", "file"),
    [
        ("NVIDIA A100-SXM4-40GB", 42.3, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 84.9, "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", 84.9, "h100-80gb"),
        ("NVIDIA H200", 150.0, "h200"),
        ("NVIDIA GeForce RTX 4090", 25.3, "rtx-4090"),
        ("NVIDIA L40S", 47.6, "l40s"),
        ("Tesla V100-SXM2-16GB", 16.9, None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, gigabytes: float, file: str | None) -> None:
    found = auto.described(name, gigabytes * 1e9)
    assert found == (None if file is None else hardware.load(file))


ONE = ("train.steps=1", "parallel=auto", "parallel.data=1")


def test_training_records_the_plan_and_keeps_to_it(danlu: Call, recipe_file: Path, tmp_path: Path) -> None:
    code, out, err = danlu("train", recipe_file, "--runs", tmp_path, *ONE, "memory.micro_batch=2")
    assert code == 0, err
    assert out.startswith("planned for 1 x cpu: one process; fp32, micro-batch 2 x 4; at most ")
    run = RunFolder.open(tmp_path / "tiny")
    kept = run.load_recipe()
    assert not kept.automatic and kept.memory.micro_batch == 2
    plan = json.loads((run.path / "plan.json").read_text("utf-8"))
    assert (plan["hardware"], plan["data"], plan["micro_batch"], plan["micro_batches"]) == ("cpu", 1, 2, 4)
    assert plan["memory"] > 0 and plan["step_seconds"] > 0
    assert recipes.parse({**kept.model_dump(exclude_unset=True), **plan["recipe"]}) is not None


@pytest.mark.slow
def test_paddle_trains_what_is_planned_for_it(danlu: Call, recipe_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("paddle")
    code, out, err = danlu("train", recipe_file, "--runs", tmp_path, *ONE, "memory=auto", "train.engine=paddle")
    assert code == 0, err
    assert out.startswith("planned for 1 x cpu: one process; fp32")
    kept = RunFolder.open(tmp_path / "tiny").load_recipe()
    assert not kept.automatic and kept.train.engine == "paddle"


def test_a_rank_is_not_started_on_a_recipe_without_a_plan(
    danlu: Call, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert danlu("prepare", recipe_file, "--runs", tmp_path, *ONE)[0] == 0
    with monkeypatch.context() as torchrun:
        torchrun.setenv("WORLD_SIZE", "2")
        torchrun.setenv("RANK", "0")
        code, _, err = danlu("worker", tmp_path / "tiny")
        assert code == 2 and "the layout is not planned yet; start it with: danlu train" in err
        code, _, err = danlu("train", tmp_path / "tiny")
        assert code == 2 and "parallel: auto plans for the devices of this machine alone" in err
    assert danlu("train", tmp_path / "tiny")[0] == 0


def test_editors_accept_the_word(recipe_file: Path) -> None:
    validate = pytest.importorskip("jsonschema").validate
    tree = load(recipe_file).model_dump(mode="json", exclude_unset=True)
    validate({**tree, "parallel": "auto", "memory": {"auto": True}}, recipes.json_schema())


def _gpus(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    """Let torch report so many GPUs."""
    import torch

    facts = SimpleNamespace(name=name, total_memory=int(84.9e9), multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)


def test_a_machine_with_gpus_is_planned_for_them(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, "NVIDIA H100 80GB HBM3", 4)
    large = ["train.device=auto", "parallel=auto", "memory=auto", "model={preset: llama-3.1-8b}", "data.sequence_length=4096"]
    filled, told = auto.filled(load(recipe_file, *large, "train.global_batch=64", "train.precision=bf16", "memory.micro_batch=1"))
    assert filled.parallel.processes == 4
    assert told[0].startswith("planned for 4 x h100-80gb: ")


def test_a_gpu_that_no_file_describes_needs_a_layout(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, "Tesla V100-SXM2-16GB", 2)
    with pytest.raises(UserError, match=r"parallel.auto: no hardware file describes this GPU \(a100-40gb, .*; give the layout"):
        auto.filled(load(recipe_file, "train.device=auto", "parallel=auto"))
    given = load(recipe_file, "train.device=auto", "parallel.data=2")
    assert auto.filled(given) == (given, [])
    assert auto.prediction(given, recipes.resolve_shape(given, None)) is None
