"""The search against the recipe's own checks (what is valid), against trying everything (what is best), and its explanations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from danlu import recipe as recipes
from danlu.errors import UserError
from danlu.model.presets import preset
from danlu.plan import changes, explain, verdict
from danlu.plan.hardware import Hardware, load
from danlu.plan.job import Dimensions, Job
from danlu.plan.outcome import as_json, micro_batches, plan, timeline
from danlu.plan.request import OFFLOADS, Request, from_recipe, given, recipe_fields
from danlu.plan.search import SAME, Plan, cost, fits, search
from danlu.plan.space import divisors, layouts, techniques
from danlu.recipe import offered

H100 = load("h100-80gb")
SEQUENCE, BATCH = 512, 16


def request(name: str = "llama-3.1-8b", **changes: Any) -> Request:
    made = Request(name, Dimensions.from_shape(preset(name)), 4096, 128, 1000)
    return replace(made, **changes)


def recipe(**sections: Any) -> recipes.Recipe:
    tree: dict[str, Any] = {
        "name": "x",
        "model": {"preset": "llama-42m", "vocab_size": 4096},
        "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": SEQUENCE},
    }
    train = {"global_batch": BATCH, "precision": "bf16", **sections.pop("train", {})}
    return recipes.parse(tree | {"train": train} | sections)


def small(**sections: Any) -> Request:
    made = recipe(**sections)
    return from_recipe(made, recipes.resolve_shape(made, 4096))


def _layout(job: Job) -> tuple[Any, ...]:
    schedule = job.schedule if job.pipeline > 1 else "1f1b"
    return (job.data, job.tensor, job.pipeline, job.zero_stage, job.sequence_parallel, schedule, job.micro_batch)


@pytest.mark.parametrize(
    ("engine", "api", "devices"),
    [
        ("torch", "fleet", 4),
        ("torch", "fleet", 6),
        ("paddle", "fleet", 4),
        ("paddle", "fleet", 6),
        ("paddle", "auto_parallel", 8),
    ],
)
def test_the_layouts_are_those_that_a_recipe_and_its_engine_accept(engine: str, api: str, devices: int) -> None:
    asked = small(train={"engine": engine}, parallel={"api": api})
    found = {_layout(job) for row in layouts(asked, H100, devices, "bf16") for job in row}
    valid = set()
    degrees = [(d, t, devices // d // t) for d in divisors(devices) for t in divisors(devices // d)]
    choices = (degrees, [0, 1, 2, 3], [False, True], asked.schedules, divisors(BATCH))
    for (data, tensor, pipeline), zero, sequence_parallel, schedule, micro in product(*choices):
        parallel = {"data": data, "tensor": tensor, "pipeline": pipeline, "zero_stage": zero, "schedule": schedule}
        try:
            parallel |= {"sequence_parallel": sequence_parallel, "api": api}
            made = recipe(train={"engine": engine}, parallel=parallel, memory={"micro_batch": micro})
            recipes.resolve_shape(made, 4096)
            offered.check(made)
        except UserError:
            continue
        valid.add((data, tensor, pipeline, zero, sequence_parallel, schedule, micro))
    assert found == valid
    assert len(found) >= 8


def test_paddle_is_planned_with_what_it_has_only() -> None:
    def found(hardware: Hardware, precision: str, **train: Any) -> list[Job]:
        asked = small(train={"engine": "paddle", **train})
        rows = layouts(asked, hardware, 2, precision)
        return [job for row in rows for group in techniques(asked, hardware, row[0]) for job in group]

    jobs = found(H100, "bf16")
    assert {job.recompute for job in jobs} == {"none", "full"} and {job.offload for job in jobs} == {"none"}
    assert found(load("cpu"), "fp32") and not found(load("cpu"), "bf16")
    compiled = found(H100, "bf16", compile=True)
    assert compiled and all(job.tensor == 1 and job.zero_stage < 3 for job in compiled)
    assert "torch engine" in small(train={"engine": "paddle"}).notes[0] and not small().notes


def _everything(asked: Request, hardware: Hardware, devices: int) -> list[Plan]:
    jobs = [job for row in layouts(asked, hardware, devices, "bf16") for job in row]
    recompute = [("none", 1), ("selective", 2), ("selective", 1), ("full", 2), ("full", 1)]
    plans = [
        Plan(job.with_(recompute=kind, recompute_every=every, offload=offload), hardware)
        for job, (kind, every), offload in product(jobs, recompute, asked.offloads)
        if (job.zero_stage == 3 or not offload.startswith("parameters")) and (job.schedule != "zero-bubble" or kind == "none")
    ]
    return [each for each in plans if each.fits]


@pytest.mark.parametrize(("name", "hardware", "devices"), [("llama-3.1-8b", "h100-80gb", 8), ("llama-3.1-8b", "rtx-4090", 16)])
def test_the_shortcuts_lose_nothing(name: str, hardware: str, devices: int) -> None:
    asked, device = request(name), load(hardware)
    found, everything = search(asked, device, devices).plans, _everything(asked, device, devices)
    fastest = min(each.time.seconds for each in everything)
    assert found[0].time.seconds <= SAME * fastest
    simplest = min(cost(each.job) for each in everything if each.time.seconds <= SAME * fastest)
    assert cost(found[0].job) == simplest
    assert all(stage.estimate < stage.bound for each in everything for stage in each.memory.stages)
    assert all(each.fits for each in found)
    # No layout that is shown last is beaten by one that is not shown.
    shown = {(p.job.data, p.job.tensor, p.job.pipeline, p.job.zero_stage) for p in found}
    hidden = [p for p in everything if (p.job.data, p.job.tensor, p.job.pipeline, p.job.zero_stage) not in shown]
    assert all(SAME * p.time.seconds >= found[-1].time.seconds / SAME for p in hidden)


def test_what_is_pasted_into_a_recipe_is_the_plan() -> None:
    asked = small()
    tried = 0
    for devices in (1, 2, 4, 8):
        for each in search(asked, H100, devices).plans:
            fields = recipe_fields(each.job)
            made = recipe(**fields)
            again = Job.from_recipe(made, recipes.resolve_shape(made, 4096))
            assert again == each.job
            tried += 1
    assert tried > 10


def test_every_offload_that_is_searched_can_be_pasted() -> None:
    asked = small()
    basis = next(row[0] for row in layouts(asked, H100, 2, "bf16") if row[0].zero_stage == 3)
    for offload in asked.offloads:
        made = recipe(**recipe_fields(basis.with_(offload=offload)))
        assert Job.from_recipe(made, recipes.resolve_shape(made, 4096)).offload == offload


def test_offload_makes_room_where_nothing_else_does() -> None:
    asked, device = request(), load("rtx-4090")
    assert not search(asked.with_(offloads=("none",)), device, 4).plans
    best = search(asked.with_(offloads=OFFLOADS), device, 4).plans[0]
    assert best.job.offload == "optimizer-host"
    assert 0 < best.host_memory <= device.host_memory
    assert any(line.startswith("without the optimizer in host memory") for line in explain.why_it_fits(best))
    poor = device.model_copy(update={"host_memory": 1e9})
    found = search(asked.with_(offloads=OFFLOADS), poor, 4).plans
    assert found and all(each.job.offload.endswith("disk") for each in found)


def test_fixed_fields_are_kept() -> None:
    fixed = {"tensor": 4, "zero_stage": 1, "recompute": "full", "micro_batch": 2}
    found = search(request(fixed=fixed), H100, 8).plans
    assert found
    assert all(getattr(each.job, name) == value for each in found for name, value in fixed.items())


def test_tensor_ranks_stay_in_a_machine() -> None:
    found = [job.tensor for row in layouts(request("llama-3.1-405b", global_batch=512), H100, 512, "bf16") for job in row]
    assert max(found) == H100.devices_per_node


def test_reasons_are_what_memory_says() -> None:
    best = search(request("llama-3.1-70b", global_batch=512), H100, 64).plans[0]
    told = explain.why_it_fits(best)
    undone = Plan(best.job.with_(recompute="none", recompute_every=1), H100)
    assert best.job.recompute != "none" and not undone.fits
    assert any("recompute" in line and f"{undone.memory.bound / 1e9:.1f} GB of" in line for line in told)


def test_parts_add_up_and_the_better_plan_is_said_to_be_faster() -> None:
    found = search(request("llama-3.1-70b", global_batch=512), H100, 64).plans
    assert len(found) == 5
    for each in found:
        assert sum(explain.parts(each).values()) == pytest.approx(each.time.seconds)
    for better, worse in pairwise(found):
        told = explain.why_it_beats(better, worse)
        apart = worse.time.seconds / better.time.seconds - 1
        assert ("simpler" in told) == (apart < SAME - 1)


def test_what_would_fit_fits_and_less_would_not() -> None:
    asked, device = request("llama-3.1-70b"), load("a100-40gb")
    answer = plan(asked, device, 8)
    assert answer.chosen is None
    kinds = {change.text.split()[1]: change for change in answer.changes}
    assert all(change.plan.fits for change in answer.changes)
    more = kinds["devices"].plan.job.devices
    assert fits(asked, device, more) and not fits(asked, device, more // 2)
    assert as_json(answer)["changes"][0]["fits"] is True


def test_mixed_precision_and_released_settings_are_proposed() -> None:
    asked = request(precisions=("fp32",), fixed={"recompute": "none"}, global_batch=64, sequence=8192)
    texts = [change.text for change in changes.smallest_changes(asked, H100, 2)]
    assert any(text.startswith("recompute ") for text in texts) or any("bf16" in text for text in texts)


def test_more_devices_than_the_batch_feeds() -> None:
    asked = request(global_batch=8)
    answer = plan(asked, H100, 4096)
    fewer, larger = answer.changes
    number = fewer.plan.job.devices
    assert fewer.text == f"{number} devices instead of 4,096" and number < 4096 and fewer.plan.fits
    assert number == max(each for each in range(1, 4096) if any(layouts(asked, H100, each, "bf16")))
    assert larger.text == "512 samples a step instead of 8" and larger.plan.job.devices == 4096
    assert larger.request.tokens == asked.tokens


@pytest.mark.parametrize("sequence", [1 << 26, (1 << 26) - 1])
def test_an_absurd_sequence_is_made_shorter(sequence: int) -> None:
    answer = plan(request(sequence=sequence, global_batch=8), H100, 8)
    shorter = next(each for each in answer.changes if each.text.startswith("samples of "))
    assert shorter.plan.fits and shorter.plan.job.sequence < sequence
    assert not fits(request(sequence=2 * shorter.plan.job.sequence, global_batch=8), H100, 8)


def test_fewer_layers_where_nothing_else_would_do() -> None:
    deep = replace(Dimensions.from_shape(preset("llama-3.1-405b")), layers=5000)
    asked = request(dimensions=deep, global_batch=4, offloads=("none",))
    (change,) = plan(asked, H100, 8).changes
    layers = change.plan.job.dimensions.layers
    assert change.text == f"{layers:,} layers instead of 5,000" and change.plan.fits
    assert not fits(asked.with_(dimensions=replace(deep, layers=layers + 1)), H100, 8)


def test_micro_batches_are_compared_at_the_same_layout() -> None:
    best = search(request(), H100, 8).plans[0]
    rows = micro_batches(best)
    sizes = [row.job.micro_batch for row in rows]
    assert sizes == sorted(set(sizes)) and best.job.micro_batch in sizes
    assert {(row.job.data, row.job.tensor, row.job.pipeline) for row in rows} == {
        (best.job.data, best.job.tensor, best.job.pipeline)
    }
    fitting = [row for row in rows if row.fits]
    assert min(row.time.seconds for row in fitting) >= best.time.seconds / SAME


def test_the_picture_is_the_planned_step() -> None:
    fixed = {"pipeline": 8, "data": 2, "tensor": 4}
    best = search(request("llama-3.1-70b", global_batch=64, fixed=fixed), H100, 64).plans[0]
    line, note = timeline(best)
    assert (line.devices, line.micro_batches, note) == (8, best.job.micro_batches, "")
    time = best.time
    busy = best.job.micro_batches * max(f + b for f, b in zip(time.forward, time.backward, strict=True))
    assert line.seconds == pytest.approx(busy + time.pipeline + time.bubble)
    many = search(request("llama-3.1-70b", global_batch=4096, fixed=fixed), H100, 64).plans[0]
    assert "first" in timeline(many)[1]


def test_405_billion_parameters_on_16384_devices() -> None:
    found = search(request("llama-3.1-405b", sequence=8192, global_batch=2048), H100, 16384)
    assert found.plans and found.considered > 50
    assert all(each.job.devices == 16384 for each in found.plans)


def test_what_divides_into_nothing_is_said() -> None:
    asked = request(global_batch=3)
    told = "\n".join(verdict.lines(plan(asked, H100, 5), 100))
    assert told.startswith("no       layout of 5 devices divides 3 samples, 32 heads (8 key/value) and 32 layers")
    assert "devices instead of 5" in told


def test_an_automatic_recipe_keeps_what_stands_beside_auto() -> None:
    made = recipe(parallel={"auto": True, "tensor": 2}, memory={"micro_batch": 2})
    assert given(made) == {"tensor": 2, "micro_batch": 2, "recompute": "none", "recompute_every": 1, "offload": "none"}


def test_a_precision_that_the_device_has_not_is_refused() -> None:
    old = H100.model_copy(update={"peak": H100.peak.model_copy(update={"bf16": None})})
    with pytest.raises(UserError, match="precision: h100-80gb has no bf16; give one of fp32, fp16"):
        plan(request(), old, 8)
    mixed = plan(request(precisions=("fp16", "bf16")), old, 8)
    assert {each.job.precision for each in mixed.found.plans} == {"fp16"}
