"""The simulation against closed forms, against the orders of torch.distributed.pipelining, and its fast path against itself."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.plan.order import in_flight, order, problem, stage_of
from danlu.plan.schedule import Cost, seconds, simulate

SHAPES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (p, 2 * p, 5 * p)]


def even(devices: int, chunks: int = 1) -> list[list[Cost]]:
    return [[Cost(1.0, 1.0, 1.0)] * chunks for _ in range(devices)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_one_stage_a_device_idles_as_narayanan_has_it(schedule: Any, p: int, m: int) -> None:
    line = simulate(schedule, even(p), m)
    assert line.seconds == pytest.approx((m + p - 1) * 3)
    assert line.bubble == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("v", [2, 3])
def test_interleaving_divides_the_bubble(p: int, m: int, v: int) -> None:
    line = simulate("interleaved", even(p, v), m, v)
    ideal = 3 * m * v
    assert (line.seconds - ideal) / ideal == pytest.approx((p - 1) / (m * v))


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SHAPES if m >= 2 * p])
def test_zero_bubble_leaves_a_third(p: int, m: int) -> None:
    """Qi et al., table 1: ZB-H1 waits (p - 1)(F + B - W) where 1F1B waits (p - 1)(F + B + W)."""
    line = simulate("zero-bubble", even(p), m)
    assert line.seconds == pytest.approx(3 * m + p - 1)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_v_only_starts_and_ends_late(p: int) -> None:
    line = simulate("zero-bubble-v", even(p, 2), 4 * p, 2)
    assert line.seconds == pytest.approx(6 * 4 * p + p - 1)


def test_activations_in_flight_are_those_of_the_papers() -> None:
    p, m = 4, 16
    assert simulate("gpipe", even(p), m).in_flight == (m,) * p
    assert simulate("1f1b", even(p), m).in_flight == (4, 3, 2, 1)
    assert simulate("zero-bubble", even(p), m).in_flight == (p,) * p
    # Korthikanti et al. 2022, section 4.2.3: interleaving holds 1 + (p - 1)/(p v) times as many layers on the first device.
    assert simulate("interleaved", even(p, 2), m, 2).in_flight[0] == p * 2 * (1 + (p - 1) / (p * 2))
    assert simulate("zero-bubble-v", even(p, 2), m, 2).in_flight == (2 * p,) * p


def test_uneven_stages_and_transfers_by_hand() -> None:
    """Two devices and micro-batches: F 0-1, sent till 1.5, F on device 1 till 3.5, B (3 + 1) till 7.5, sent till 8, B (1 + 1)."""
    costs = [[Cost(1, 1, 1, 0.5)], [Cost(2, 3, 1)]]
    line = simulate("1f1b", costs, 2)
    got = {(o.device, o.kind, o.micro_batch): (o.start, o.end) for o in line.operations}
    assert got[1, "F", 0] == (1.5, 3.5)
    assert got[1, "B", 0] == (3.5, 7.5)
    assert got[0, "B", 0] == (8, 10)
    assert got[1, "F", 1] == (7.5, 9.5)
    assert got[1, "B", 1] == (9.5, 13.5)
    assert got[0, "B", 1] == (14, 16)
    assert line.seconds == 16
    assert line.bubble == pytest.approx(1 - (2 * 3 + 2 * 6) / (2 * 16))


def _torch_order(name: str, device: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    made = object.__new__(getattr(schedules, name))
    made.pp_group_size, made._n_microbatches, made.n_local_stages = p, m, v
    made.num_stages = made._num_stages = p * v
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    whole = name == "Schedule1F1B"
    actions = made._get_pipeline_order()[device] if whole else made._calculate_single_rank_operations(device)
    letters = {"F": "F", "B": "B", "I": "B", "W": "W"}
    return [(letters[a[1].value], a[0], a[2]) for a in actions if a is not None and a[1].value in letters]


@pytest.mark.parametrize(
    ("schedule", "name", "v", "shapes"),
    [
        ("1f1b", "Schedule1F1B", 1, [(2, 4), (4, 4), (4, 9)]),
        ("interleaved", "ScheduleInterleaved1F1B", 2, [(2, 4), (4, 8), (4, 10), (4, 3), (8, 32)]),
        ("interleaved", "ScheduleInterleaved1F1B", 3, [(4, 8), (3, 3)]),
        ("zero-bubble", "ScheduleInterleavedZeroBubble", 1, [(2, 4), (4, 8), (8, 16)]),
        ("zero-bubble", "ScheduleInterleavedZeroBubble", 2, [(2, 4), (4, 8), (4, 10), (8, 8)]),
        ("zero-bubble-v", "ScheduleZBVZeroBubble", 2, [(2, 3), (4, 4), (4, 8), (4, 20)]),
    ],
)
def test_the_order_is_that_of_torch(schedule: Any, name: str, v: int, shapes: list[tuple[int, int]]) -> None:
    for p, m in shapes:
        # torch's picture of 1F1B numbers the last device's micro-batches from 1, which its execution does not.
        for device in range(p - 1 if schedule == "1f1b" else p):
            steps = order(schedule, device, p, m, v).steps
            mine = [(step.kind, stage_of(schedule, device, step.chunk, p), step.micro_batch) for step in steps]
            assert mine == _torch_order(name, device, p, m, v), (p, m, device)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[list[Cost]], int, int]:
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"]))
    p = draw(st.integers(1, 5))
    v = {"gpipe": 1, "1f1b": 1, "zero-bubble-v": 2}.get(schedule) or draw(st.integers(1, 3))
    m = draw(st.integers(1, 60))
    if problem(schedule, p, m, v):  # type: ignore[arg-type]
        m = p * draw(st.integers(1, 12))
    # Nearly equal stages are the hard case: which one is the bottleneck shows late.
    time = st.one_of(st.floats(0.5, 2.0), st.floats(1.0, 1.02), st.just(1.0))
    send = st.one_of(st.just(0.0), st.floats(0.0, 1.0))
    row = st.lists(st.builds(Cost, time, time, time, send), min_size=v, max_size=v)
    return schedule, draw(st.lists(row, min_size=p, max_size=p)), m, v


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_fast_path_is_the_simulation(case: Any) -> None:
    schedule, costs, m, v = case
    line = simulate(schedule, costs, m, v)
    assert seconds(schedule, costs, m, v) == pytest.approx(line.seconds, rel=1e-8)
    assert line.in_flight == tuple(_most_alive(line, device) for device in range(len(costs)))


def _most_alive(line: Any, device: int) -> int:
    release = "W" if line.schedule.startswith("zero-bubble") else "B"
    alive = most = 0
    for operation in line.operations:
        if operation.device == device:
            alive += (operation.kind == "F") - (operation.kind == release)
            most = max(most, alive)
    return most


@settings(max_examples=100, deadline=None)
@given(cases())
def test_operations_wait_for_what_they_need_and_no_longer(case: Any) -> None:
    """Checked on the operations alone: each starts at the latest of its device's last end and its input's arrival."""
    schedule, costs, m, v = case
    line = simulate(schedule, costs, m, v)
    p = len(costs)
    where = {stage_of(schedule, d, c, p): (d, c) for d, c in itertools.product(range(p), range(v))}
    ends = {(o.kind, stage_of(schedule, o.device, o.chunk, p), o.micro_batch): o.end for o in line.operations}
    assert len(ends) == len(line.operations) == p * v * m * (3 if schedule.startswith("zero-bubble") else 2)
    free: dict[int, float] = defaultdict(float)
    for o in line.operations:
        stage = stage_of(schedule, o.device, o.chunk, p)
        ready = [free[o.device]]
        if o.kind == "F" and stage > 0:
            d, c = where[stage - 1]
            ready.append(ends["F", stage - 1, o.micro_batch] + (costs[d][c].send if d != o.device else 0))
        if o.kind == "B":
            ready.append(ends["F", stage, o.micro_batch])
            if stage < p * v - 1:
                d, _ = where[stage + 1]
                send = costs[o.device][o.chunk].send if d != o.device else 0
                ready.append(ends["B", stage + 1, o.micro_batch] + send)
        if o.kind == "W":
            ready.append(ends["B", stage, o.micro_batch])
        assert o.start == pytest.approx(max(ready))
        free[o.device] = o.end


def test_in_flight_by_chunk_adds_up() -> None:
    assert in_flight("interleaved", 0, 4, 16, 2) == (7, 4)
    assert in_flight("1f1b", 0, 4, 10**6, 1) == (4,)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "says"),
    [
        ("1f1b", 2, 4, 2, "one stage a device"),
        ("zero-bubble-v", 2, 4, 1, "two stages a device"),
        ("interleaved", 4, 9, 2, "do not divide into 2 rounds"),
        ("1f1b", 2, 0, 1, "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(schedule: Any, p: int, m: int, v: int, says: str) -> None:
    for run in (simulate, seconds):
        with pytest.raises(ValueError, match=says):
            run(schedule, even(p, v), m, v)
    with pytest.raises(ValueError, match="one row a device"):
        simulate(schedule, even(p, v + 1), m, v)
