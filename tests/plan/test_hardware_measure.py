"""A hardware file from measurements: what is written is read, and what is predicted from it follows from its curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from danlu import auto
from danlu import measure as machine
from danlu import recipe as recipes
from danlu.engines import whole_step
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.measure.__main__ import least
from danlu.engines.torch.measure.clock import Clock
from danlu.engines.torch.measure.operators import _CASES, attention
from danlu.engines.torch.trial import meter_step
from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.plan.hardware import Hardware, load
from danlu.plan.job import Dimensions, Job
from danlu.plan.measured import COLLECTIVES, OPERATORS, Curve, Fixed, Share
from danlu.plan.memory import memory
from danlu.plan.request import own_layout
from danlu.plan.step_time import step_time
from danlu.recipe import resolve_shape

Call = Callable[..., Any]
RATE, SPEED, LINK = 1e11, 1e9, 1e9
"""Operations, elements and bytes a second of a machine that is as plain as can be."""
SMALL = Dimensions(layers=2, hidden=64, ffn=128, heads=4, kv_heads=4, vocab=512, head_size=64)


def line(rate: float) -> list[list[float]]:
    """A curve without any cost of a call but a picosecond."""
    return [[1e-3, 1e-12], [1e9, 1e9 / rate]]


FREE = {precision: {"forward": line(1e30), "backward": line(1e30)} for precision in ("fp32", "bf16")}


def plain(processes: int = 1, call: float = 0.0) -> dict[str, Any]:
    both = {precision: {"forward": line(SPEED), "backward": line(SPEED)} for precision in ("fp32", "bf16")}
    fixed = {"step": 0, "step_layer": 0, "micro_batch": 0, "layer": call}
    return {
        "processes": processes,
        "threads": 1,
        "matmul": {precision: line(RATE) for precision in ("fp32", "bf16")},
        "attention": both,
        "operators": dict.fromkeys(OPERATORS, both),
        "collectives": {name: line(LINK) for name in COLLECTIVES},
        "fixed": {"alone": dict.fromkeys(("fp32", "bf16"), fixed)},
    }


def hardware(*shares: dict[str, Any]) -> Hardware:
    whole = load("cpu").model_dump() | {"measured": shares}
    return Hardware.model_validate(whole)


def test_a_curve_is_linear_between_points_and_proportional_beyond() -> None:
    curve = Curve.model_validate([[10, 2.0], [20, 4.0], [40, 6.0]])
    assert [curve.at(size) for size in (5, 10, 15, 30, 80)] == [2.0, 2.0, 3.0, 5.0, 12.0]
    assert curve.above(10) == 0 and curve.above(30) == 3.0


@pytest.mark.parametrize("points", [[[1, 1.0]], [[2, 1.0], [1, 2.0]], [[1, 0.0], [2, 1.0]], [[1, 1.0], [1, 2.0]]])
def test_no_curve_goes_back_or_takes_no_time(points: list[list[float]]) -> None:
    with pytest.raises(ValidationError, match="a curve has two points or more"):
        Curve.model_validate(points)


def test_products_alone_take_the_operations_that_the_model_has() -> None:
    """With everything else infinitely fast a step is 6 operations a matrix parameter and token."""
    share = plain()
    share["operators"] = dict.fromkeys(OPERATORS, FREE)
    share["attention"] = FREE
    job = Job(SMALL, sequence=32, micro_batch=2, global_batch=6, precision="fp32")
    matrices = 2 * (SMALL.attention_parameters + SMALL.mlp_parameters) + SMALL.table
    assert step_time(job, hardware(share)).seconds == pytest.approx(6 * matrices * 6 * 32 / RATE, rel=1e-3)


@pytest.mark.parametrize(
    "layout, volume",
    [
        ({"data": 2}, 4),  # every gradient once
        ({"data": 2, "zero_stage": 1}, 4 + 4 * 2),  # and every weight gathered for both micro-batches
        ({"data": 2, "zero_stage": 2}, 4 * 2 + 4 * 2),  # gradients of every micro-batch
        ({"data": 2, "zero_stage": 3}, 4 * 2 + 4 * 2 * 2),  # weights again in the backward pass
    ],
)
def test_data_ranks_exchange_what_their_stage_says(layout: dict[str, int], volume: int) -> None:
    job = Job(SMALL, sequence=32, micro_batch=1, global_batch=4, precision="fp32", **layout)  # type: ignore[arg-type]
    share = plain(2)
    share["operators"] = dict.fromkeys(OPERATORS, FREE)
    assert step_time(job, hardware(share)).data == pytest.approx(volume * SMALL.parameters / LINK, rel=1e-3)


def test_a_call_costs_every_layer_and_micro_batch() -> None:
    job = Job(SMALL, sequence=32, micro_batch=1, global_batch=3, precision="fp32")
    free, dear = (step_time(job, hardware(plain(call=call))).seconds for call in (0.0, 1.0))
    assert dear - free == pytest.approx(2 * 3)
    assert Fixed(step=1, step_layer=2, micro_batch=3, layer=4).seconds(layers=5, micro_batches=6) == 1 + 10 + 18 + 120


def test_processes_get_what_was_measured_with_as_many() -> None:
    slow = plain(2)
    slow["matmul"] = {precision: line(RATE / 2) for precision in ("fp32", "bf16")}
    both = hardware(plain(1), slow)
    assert [both.share(count).processes for count in (1, 2, 3)] == [1, 2, 2]  # type: ignore[union-attr]
    assert both.of(2).memory == both.memory / 2 and load("cpu").of(2).memory == load("cpu").memory


def test_of_two_measurements_every_point_is_the_quicker_one() -> None:
    one, other = {"a": {"b": [(1, 2.0), (2, 5.0)]}}, {"a": {"b": [(1, 3.0), (2, 4.0)]}}
    assert least(one, other) == {"a": {"b": [(1, 2.0), (2, 4.0)]}}


def test_a_slowdown_of_whole_steps_is_that_of_the_prediction() -> None:
    half = {"slowdown": {"fp32": 1.25}}
    job = Job(SMALL, sequence=64, micro_batch=1, global_batch=2, precision="fp32")
    seconds = [step_time(job, hardware(plain() | more)).seconds for more in ({}, half, {"slowdown": {"bf16": 2.0}})]
    assert seconds[1] == pytest.approx(1.25 * seconds[0]) and seconds[2] == seconds[0]


def test_every_operator_of_the_model_is_timed() -> None:
    assert set(_CASES) == set(OPERATORS)
    clock = Clock(torch.device("cpu"))
    for case in _CASES.values():
        call, inputs = case(clock, "bf16", 1024)
        result = call()
        assert not inputs or torch.autograd.grad(result.sum(), inputs)
    assert clock.least(lambda: None, budget=0) > 0


def test_the_least_of_many_is_kept() -> None:
    clock, takes = Clock(torch.device("cpu")), iter([0, 5, 2, 9, 0])
    clock._now = lambda: next(ticks)  # type: ignore[assignment]
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    assert clock.least(lambda: next(takes), budget=0, cold=False) == 2.0


def test_a_file_is_written_that_the_planner_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, danlu: Call) -> None:
    """The processes' figures are made up; everything around them is real."""
    whole = {"fp32": 0.5, "bf16": 0.25}
    monkeypatch.setattr(machine, "processes", lambda _, count, threads: json.dumps(plain(count) | {"whole": whole}))
    file = tmp_path / "my.yaml"
    code, out, err = danlu(
        "hardware", "measure", "--device", "cpu", "--processes", "1", "--processes", "2", "--output", str(file)
    )
    assert (code, "100 GFLOP/s" in out, f"--hardware {file}" in err) == (0, True, True)
    assert [share.processes for share in load(str(file)).measured] == [1, 2]
    measured = load(str(file)).measured[1]
    assert measured.model_copy(update={"slowdown": {}}) == Share.model_validate(plain(2))
    for precision, seconds in whole.items():  # predicted as it was timed, to the digits of the file
        recipe = whole_step.recipe("cpu", precision, 2)
        assert step_time(own_layout(recipe, resolve_shape(recipe, None)), load(str(file))).seconds == pytest.approx(seconds, 1e-3)
    code, out, _ = danlu("plan", "llama-10m", "--hardware", str(file), "--devices", "2", "--sequence", "64", "--json")
    assert (code, json.loads(out)["hardware"]) == (0, "this-cpu")


def test_a_failed_process_is_told_in_a_line() -> None:
    with pytest.raises(Exception, match=r"a process of the measurement failed: .*nowhere"):
        machine.processes(["-c", "raise SystemExit('nowhere')"], 2)


@pytest.mark.parametrize("name, line", [("my.txt", "does not end in .yaml"), ("none/my.yaml", "does not exist")])
def test_a_place_that_cannot_be_written_is_told_before_measuring(tmp_path: Path, danlu: Call, name: str, line: str) -> None:
    code, _, err = danlu("hardware", "measure", "--output", str(tmp_path / name))
    assert code == UserError.exit_code and line in err


def test_the_shipped_devices_are_listed(danlu: Call) -> None:
    code, out, _ = danlu("hardware", "list")
    assert code == 0 and "h100-80gb" in out
    assert json.loads(danlu("hardware", "list", "--json")[1])[0]["name"] == "a100-40gb"


def test_auto_plans_with_the_file_that_is_named(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"peak": {"fp32": RATE}, "bandwidth": 1e10, "node_link": 1e9}
    rest = {"multiprocessors": 1, "network": 1e9, "host_link": 1e10, "host_memory": 1e10, "price": 0, "memory": 1e10}
    machine.write(
        {"name": "mine", "family": "cpu", "devices_per_node": 2, "measured": [plain(1), plain(2)], **rest, **rates},
        tmp_path / "mine.yaml",
    )
    monkeypatch.setenv(auto.HARDWARE, str(tmp_path / "mine.yaml"))
    _, told = auto.filled(recipes.load(recipe_file, ["train.global_batch=8", "parallel=auto"]))
    assert " x mine: " in told[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"precision": "bf16"}},
        {"memory": {"micro_batch": 1}},
        {"memory": {"recompute": "full"}},
        {"memory": {"recompute": "full", "recompute_every": 2}},
        {"memory": {"recompute": "selective"}, "train": {"precision": "bf16"}},
        {"model": {"vocab_size": 24000}},
        {"model": {"tied_embeddings": True}},
        {"model": {"kv_heads": 1}},
    ],
    ids=str,
)
def test_planned_memory_is_what_the_meter_counts(changes: dict[str, dict[str, Any]]) -> None:
    model = {"family": "llama", "layers": 3, "hidden_size": 128, "ffn_size": 352, "heads": 4, "vocab_size": 4096}
    recipe = recipes.parse(
        {
            "name": "small",
            "stages": ["train"],
            "model": {**model, **changes.get("model", {})},
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 128},
            "train": {"steps": 10, "global_batch": 4, "device": "cpu", **changes.get("train", {})},
            "memory": changes.get("memory", {}),
        }
    )
    job = own_layout(recipe, resolve_shape(recipe, None))
    planned = memory(job, load("cpu")).stages[0]
    assert planned.estimate - planned.overhead == pytest.approx(meter_step(recipe)["peak"], rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": {"rank": 8}},
        {"lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}},
        {"lora": {"rank": 4}, "precision": "bf16"},
        {"objective": "distill", "distill": {}},
        {"objective": "dpo"},
        {"objective": "dpo", "lora": {"rank": 8}},
    ],
    ids=str,
)
def test_adapters_and_second_models_are_planned_for(changes: dict[str, Any], tmp_path: Path) -> None:
    """As above, beside weights in a folder."""
    model = {"family": "llama", "layers": 3, "hidden_size": 128, "ffn_size": 352, "heads": 4, "vocab_size": 4096}
    shape = ModelShape.model_validate(model)
    data = {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 128}
    first = TorchEngine(recipes.parse({"name": "x", "model": model, "data": data, "train": {"device": "cpu"}}), shape)
    first.initialise()
    first.export_weights(tmp_path, "fp32")
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(shape, bos_token_id=None, eos_token_id=None)))
    train = {"steps": 10, "global_batch": 4, "device": "cpu"} | changes
    if "distill" in changes:
        train["distill"] = {"teacher": str(tmp_path)}
    recipe = recipes.parse({"name": "x", "model": {"hugging_face": str(tmp_path)}, "data": data, "train": train})
    planned = memory(own_layout(recipe, shape), load("cpu")).stages[0]
    engine = TorchEngine(recipe, shape)
    engine.import_weights(tmp_path)
    tokens = torch.randint(0, 4096, (1, 4, 128), generator=torch.Generator().manual_seed(0))
    documents = (torch.arange(128).expand(1, 4, 128) >= 64).int()
    batch = {"inputs": tokens, "targets": tokens} | ({"documents": documents} if recipe.train.objective == "dpo" else {})
    engine.train_step(batch, 1e-4)
    found = engine.metered_step(batch, 1e-4)[1][0]
    assert planned.estimate - planned.overhead == pytest.approx(found["peak"], rel=0.08)


def test_attention_has_every_length_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    from danlu.engines.torch.measure import operators

    monkeypatch.setattr(operators, "LENGTHS", {"cpu": (16, 32)})
    monkeypatch.setattr(Clock, "least", lambda _, call, *__: bool(call() is not None) * 1.0)
    found = attention(Clock(torch.device("cpu")), "fp32")
    assert found == {way: [(16, 0.25), (32, 0.25)] for way in ("forward", "backward")}
