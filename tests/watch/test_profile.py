"""Traces beside torch's own account of them, and verdicts on traces whose truth is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from danlu.errors import UserError
from danlu.watch import profile as profiles
from danlu.watch import trace
from danlu.watch.trace import Trace

GPU, CPU = "kernel", "cpu_op"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, int]:
    """A trace of torch's, its own table, and the operations that torch's counter counts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    linear, x = torch.nn.Linear(64, 96), torch.randn(4, 32, 64)
    q = torch.randn(2, 4, 32, 16, requires_grad=True)

    def step() -> None:
        torch.nn.functional.silu(linear(x)).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
        (torch.bmm(x, x.transpose(1, 2)) @ x.mean()[None, None].expand(32, 5)).sum()

    with FlopCounterMode(display=False) as counter:
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiled:
        step()
    file = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    profiled.export_chrome_trace(str(file))
    torch.set_num_threads(threads)
    return file, profiled.key_averages(group_by_input_shape=True), counter.get_total_flops()


def test_calls_and_own_time_are_those_of_torch_s_table(work: tuple[Path, Any, int]) -> None:
    file, table, _ = work
    found = trace.read(file).operators
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for one in found:
        calls[one.name] = calls.get(one.name, 0) + one.calls
        seconds[one.name] = seconds.get(one.name, 0.0) + one.seconds
    told: dict[str, int] = {}
    theirs: dict[str, float] = {}
    for row in table:
        told[row.key] = told.get(row.key, 0) + row.count
        theirs[row.key] = theirs.get(row.key, 0.0) + row.self_cpu_time_total / 1e6
    shared = set(told) & set(calls)
    assert len(shared) > 20
    nested = {"aten::sum", "aten::mean", "aten::div_"}  # call themselves, which torch's table takes for one call
    assert {name: calls[name] for name in shared - nested} == {name: told[name] for name in shared - nested}
    assert sum(seconds[name] for name in shared) == pytest.approx(sum(theirs[name] for name in shared), rel=0.02)


def test_operations_are_those_that_torch_counts(work: tuple[Path, Any, int]) -> None:
    file, _, expected = work
    q = (2, 4, 32, 16)
    attention = sdpa_flop_count(q, q, q) + sdpa_backward_flop_count(q, q, q, q)  # its counter leaves the CPU's out
    assert sum(one.flops for one in trace.read(file).operators) == expected + attention


def test_shapes_and_memory_are_in_the_trace(work: tuple[Path, Any, int]) -> None:
    found = trace.read(work[0])
    assert any(one.name == "aten::addmm" and one.shapes == "[96] [128, 64] [64, 96]" for one in found.operators)
    assert max(held for _, held in found.memory) >= 4 * 4 * 32 * 96
    assert [moment for moment, _ in found.memory] == sorted(moment for moment, _ in found.memory)


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mul", [[8, 4], [8, 1]], ["float", "float"], 4 * (32 + 8 + 32)),
        ("aten::sum", [[8, 4], []], ["c10::BFloat16", ""], 2 * 32),
        ("aten::mm", [[8, 4], [4, 2]], ["float", "float"], 4 * (32 + 8 + 16)),
        ("aten::view", [[8, 4], []], ["float", "ScalarList"], 0),
        ("aten::_foreach_mul_", [[[8], [4]], []], ["TensorList", "Scalar"], 2 * 4 * 12),
        ("autograd::engine::evaluate_function: X", [[8]], ["float"], 0),
    ],
)
def test_bytes_are_what_is_read_and_written(name: str, dims: list[Any], types: list[str], expected: int) -> None:
    assert trace.moved(name, dims, types) == expected


def test_a_causal_mask_halves_attention() -> None:
    dims, attention = [[2, 4, 32, 16]] * 3, "aten::_scaled_dot_product_flash_attention"
    full = trace.flops(attention, dims, ["", "", "", "0.", "False"])
    assert full == 2 * trace.flops(attention, dims, ["", "", "", "0.", "True"]) == sdpa_flop_count(*map(tuple, dims))
    assert trace.flops("aten::mm", [[2]], []) == 0


def event(
    category: str, name: str, start: float, seconds: float, number: int = 0, thread: int = 1, **more: Any
) -> dict[str, Any]:
    told = {"cat": category, "name": name, "ts": start * 1e6, "dur": seconds * 1e6, "args": {"External id": number, **more}}
    return {"ph": "X", "pid": 1, "tid": thread, **told}


def told(*, waited: float = 0.0, data: float = 0.0, device: str = "cpu") -> dict[str, Any]:
    steps = [{"step": step, "seconds": 1.0, "parts": {"data_wait": data, "communication": waited}} for step in (3, 4)]
    return {"device": device, "matmul_flops_per_second": 1e9, "copy_bytes_per_second": 1e9, "steps": steps}


MM = {"Input Dims": [[500, 1000], [1000, 500]], "Input type": ["float", "float"]}  # half a second at the rate of told
ADD = {"Input Dims": [[10_000_000], [10_000_000]], "Input type": ["float", "float"]}  # 0.12 s


@pytest.mark.parametrize(
    ("events", "parts", "bound", "share", "reached"),
    [
        ([event(CPU, "aten::mm", 0, 1.2, **MM), event(CPU, "aten::add", 1.2, 0.2, **ADD)], {}, "compute", 0.6, 0.5e9 / 1.2),
        ([event(CPU, "aten::mm", 0, 0.5, **MM), event(CPU, "aten::add", 0.5, 1.0, **ADD)], {}, "memory", 0.5, 0.12e9),
        ([event(CPU, "aten::mm", 0, 0.5, **MM)], {"data": 0.7}, "data", 0.7, None),
        ([event(CPU, "aten::mm", 0, 0.5, **MM)], {"waited": 0.6}, "communication", 0.6, None),
        ([event(CPU, "aten::mm", 0, 0.5, **MM)], {}, "host", 0.75, None),
    ],
)
def test_the_verdict_is_what_most_of_the_time_goes_to(
    events: list[dict[str, Any]], parts: dict[str, float], bound: str, share: float, reached: float | None
) -> None:
    found = profiles.profile(0, told(**parts), trace.of_events(events), "file")
    assert found.verdict.bound == bound and found.verdict.share == pytest.approx(share)
    assert found.verdict.measured == (None if reached is None else pytest.approx(reached))
    assert found.data_wait + found.communication + found.compute + found.memory + found.idle == pytest.approx(found.step)
    text = profiles.verdict_text(found)
    assert text.startswith("bound by the host" if bound == "host" else f"{bound}-bound: {share:.1%}")
    assert ("measured here" in text) == (reached is not None)


def test_own_time_leaves_out_what_is_inside_and_other_threads() -> None:
    events = [
        event(CPU, "aten::linear", 0, 10, 1),
        event(CPU, "aten::addmm", 1, 6, 2),
        event(CPU, "aten::copy_", 2, 1, 3),
        event(CPU, "aten::add", 3, 2, 4, thread=2),
        event(CPU, "gloo:all_reduce", 4, 3, 5, thread=3),
    ]
    found = {one.name: one.seconds for one in trace.of_events(events).operators}
    assert found == pytest.approx({"aten::linear": 4, "aten::addmm": 5, "aten::copy_": 1, "aten::add": 2})
    assert trace.of_events(events).communication == [(4, 7)]


def test_on_a_gpu_time_is_that_of_kernels_and_messages_hide_behind_them() -> None:
    events = [
        event(CPU, "aten::mm", 0, 0.01, 7, **MM),
        event(CPU, "c10d::allreduce_", 0.02, 0.01, 8),
        event(GPU, "gemm", 0.1, 0.8, 7, thread=7),
        event(GPU, "ncclDevKernel_AllReduce", 0.5, 0.8, 8, thread=8),
    ]
    found = profiles.profile(0, told(device="cuda:0"), trace.of_events(events), "file")
    (row,) = found.operators
    assert (row.name, row.seconds, row.bound) == ("aten::mm", pytest.approx(0.8), "compute")
    assert found.communication == pytest.approx(0.4 / 2), "a step of two, and half of it hidden"
    assert found.communication_overlap == pytest.approx(0.5)
    assert found.idle_cause == "kernels come too late from the host"


def test_spans_that_overlap_count_once() -> None:
    assert trace.union([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert trace.union([]) == 0


def test_a_long_timeline_keeps_its_peak() -> None:
    timeline = [(float(at), at % 997) for at in range(5000)]
    found = profiles.profile(0, told(), Trace([], memory=timeline), "file")
    assert len(found.memory_timeline) <= profiles.TIMELINE and found.memory_peak == 996
    assert max(held for _, held in found.memory_timeline) == 996


def test_what_is_not_there_or_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no steps were profiled"):
        profiles.profiles(tmp_path)
    folder = tmp_path / profiles.FOLDER
    folder.mkdir()
    profiles.steps_file(folder, 0).write_text(json.dumps(told()))
    for content in (b"", gzip.compress(b"{")[:-3], gzip.compress(b"[]")):
        profiles.trace_file(folder, 0).write_bytes(content)
        with pytest.raises(UserError, match="profile the run again"):
            profiles.profiles(tmp_path)
    whole = json.dumps({"traceEvents": [event(CPU, "aten::mm", 0, 1, **MM)]})
    profiles.trace_file(folder, 0).write_bytes(gzip.compress(whole.encode()))
    assert len(profiles.lines(profiles.profiles(tmp_path), 5)) > 8
    for content in ({}, [], told() | {"steps": []}):
        profiles.steps_file(folder, 0).write_text(json.dumps(content))
        with pytest.raises(UserError, match="damaged"):
            profiles.profiles(tmp_path)
