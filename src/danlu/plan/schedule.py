"""How long a pipeline step takes: the schedule simulated event by event, with stages of any cost and transfers that take time.

A device runs its operations one after the other in the order of its schedule (`order`); each begins as soon as the device is free
and what it needs has arrived. A transfer occupies no device: it only comes that much later to the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from danlu.plan.order import Kind, Order, Schedule, in_flight, order, problem, round_size, splits_backward, stage_of


class Cost(NamedTuple):
    """Seconds of one micro-batch on one model chunk."""

    forward: float
    backward_input: float
    """Gradient of the chunk's input; recomputation belongs here."""
    backward_weight: float
    """Gradient of its weights; one operation with the former unless the schedule splits them."""
    send: float = 0.0
    """From this chunk to the next one, and of the gradient back."""


class Operation(NamedTuple):
    """What a device does from start to end, in seconds since the step began."""

    device: int
    kind: Kind
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A simulated step."""

    schedule: Schedule
    devices: int
    micro_batches: int
    virtual_stages: int
    operations: tuple[Operation, ...]
    """Those of a device in the order in which it runs them."""
    seconds: float

    @property
    def bubble(self) -> float:
        """Share of the devices' time in which they wait."""
        busy = sum(operation.end - operation.start for operation in self.operations)
        return 1 - busy / (self.devices * self.seconds) if self.seconds else 0.0

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Of every device the most micro-batch activations that it holds at once, all chunks together."""
        shape = (self.devices, self.micro_batches, self.virtual_stages)
        return tuple(sum(in_flight(self.schedule, device, *shape)) for device in range(self.devices))


class _Node(NamedTuple):
    """One operation in an order in which everything comes after what it waits for; -1 stands for nothing."""

    before: int
    """On the same device."""
    needs: int
    """On another stage."""
    cost: int
    """Index into the durations."""
    lag: int
    """Index into the transfer times."""


class _Program(NamedTuple):
    nodes: tuple[_Node, ...]
    places: tuple[tuple[int, ...], ...]
    """Of every device the nodes of its steps."""
    orders: tuple[Order, ...]


def simulate(schedule: Schedule, costs: Sequence[Sequence[Cost]], micro_batches: int, virtual_stages: int = 1) -> Timeline:
    """One step of ``costs[device][chunk]``. ValueError: the schedule cannot be, or the costs do not have its chunks."""
    devices = _devices(costs, virtual_stages)
    program = _program(schedule, devices, micro_batches, virtual_stages)
    durations, lags = _tables(schedule, costs)
    ends = _ends(program, durations, lags)
    operations = []
    for device, (places, its_order) in enumerate(zip(program.places, program.orders, strict=True)):
        for node, step in zip(places, its_order.steps, strict=True):
            start = ends[node] - durations[program.nodes[node].cost]
            operations.append(Operation(device, step.kind, step.micro_batch, step.chunk, start, ends[node]))
    return Timeline(schedule, devices, micro_batches, virtual_stages, tuple(operations), max(ends))


def seconds(schedule: Schedule, costs: Sequence[Sequence[Cost]], micro_batches: int, virtual_stages: int = 1) -> float:
    """`simulate(...).seconds`, without simulating every micro-batch.

    GPipe is a flow shop of equal jobs and has a closed form. The others are simulated with few micro-batches, and what a further
    period adds is read off (see `_added`). As long as that cannot be told, more micro-batches are simulated, at most all.
    """
    devices = _devices(costs, virtual_stages)
    if (why := problem(schedule, devices, micro_batches, virtual_stages)) is not None:
        raise ValueError(why)
    if schedule == "gpipe":
        return _flow_shop([row[0] for row in costs], micro_batches)
    durations, lags = _tables(schedule, costs)
    size = round_size(schedule, devices, micro_batches, virtual_stages)
    rounds = micro_batches // size
    few = -(-2 * devices // size) + 2 * REACH
    while few < rounds:
        program = _program(schedule, devices, few * size, virtual_stages)
        ends = _ends(program, durations, lags)
        if (added := _added(program, ends, durations, lags)) is not None:
            return max(ends) + (rounds - few) * added
        few *= 2
    return max(_ends(_program(schedule, devices, micro_batches, virtual_stages), durations, lags))


REACH = 3
"""Periods back that an operation depends on, at most: the head start of neighbours is two places, that of a chunk one round."""


def _added(program: _Program, ends: list[float], durations: list[float], lags: list[float]) -> float | None:
    """Seconds that every further period adds to the step; None while that cannot be told.

    An operation's start is the largest of other ends plus constants. So if the last periods of all devices come after the ones
    before them by at most t, all further ones do, and by exactly t if it is the same t everywhere (max-plus eigenvector). And
    a period adds at least the work of any device whose steady part is on the critical path: where that work is t, it adds t.
    """
    least, most = float("inf"), 0.0
    for places, (_, steady, period) in zip(program.places, program.orders, strict=True):
        if len(steady) < (REACH + 1) * period:
            return None
        for position in range(steady.stop - REACH * period, steady.stop):
            later = ends[places[position]] - ends[places[position - period]]
            least, most = min(least, later), max(most, later)
    if most - least <= 1e-9 * most:
        return most
    critical = _critical(program, ends, lags)
    for places, (_, steady, period) in zip(program.places, program.orders, strict=True):
        work = sum(durations[program.nodes[places[position]].cost] for position in range(steady.stop - period, steady.stop))
        if most <= (1 + 1e-9) * work and places[steady.stop - 1] in critical:
            return work
    return None


def _critical(program: _Program, ends: list[float], lags: list[float]) -> set[int]:
    """The nodes on one longest chain of operations, each of which the next one waited for."""
    node = max(range(len(ends)), key=ends.__getitem__)
    chain = set()
    while node >= 0:
        chain.add(node)
        before, needs, _, lag = program.nodes[node]
        waited = needs >= 0 and (before < 0 or ends[needs] + lags[lag] > ends[before])
        node = needs if waited else before
    return chain


def _flow_shop(costs: Sequence[Cost], micro_batches: int) -> float:
    """All forwards, then all backwards the other way: the first micro-batch's way, then the slowest stage's rhythm."""
    forward = [cost.forward for cost in costs]
    backward = [cost.backward_input + cost.backward_weight for cost in costs]
    ways = sum(forward) + sum(backward) + 2 * sum(cost.send for cost in costs[:-1])
    return ways + (micro_batches - 1) * (max(forward) + max(backward))


def _devices(costs: Sequence[Sequence[Cost]], virtual_stages: int) -> int:
    if not costs or any(len(row) != virtual_stages for row in costs):
        raise ValueError(f"costs have one row a device, with {virtual_stages} chunks each")
    return len(costs)


def _tables(schedule: Schedule, costs: Sequence[Sequence[Cost]]) -> tuple[list[float], list[float]]:
    """Durations of F, B and W by device and chunk, and by stage how long its output travels; the last entry is no travel."""
    split = splits_backward(schedule)
    durations, devices = [], len(costs)
    sends = [0.0] * (devices * len(costs[0]) + 1)
    for device, row in enumerate(costs):
        for chunk, cost in enumerate(row):
            whole = cost.backward_input + (0.0 if split else cost.backward_weight)
            durations += [cost.forward, whole, cost.backward_weight]
            sends[stage_of(schedule, device, chunk, devices)] = cost.send
    return durations, sends


def _ends(program: _Program, durations: list[float], lags: list[float]) -> list[float]:
    """When every node ends."""
    ends: list[float] = []
    add = ends.append
    for before, needs, cost, lag in program.nodes:
        start = ends[before] if before >= 0 else 0.0
        if needs >= 0:
            arrival = ends[needs] + lags[lag]
            start = max(arrival, start)
        add(start + durations[cost])
    return ends


@lru_cache(maxsize=256)
def _program(schedule: Schedule, devices: int, micro_batches: int, virtual_stages: int) -> _Program:
    """The operations of all devices in an order in which each comes after what it waits for."""
    orders = tuple(order(schedule, device, devices, micro_batches, virtual_stages) for device in range(devices))
    chunks = [(device, chunk) for device in range(devices) for chunk in range(virtual_stages)]
    device_of = {stage_of(schedule, device, chunk, devices): device for device, chunk in chunks}
    stages = nowhere = len(chunks)
    nodes: list[_Node] = []
    done: dict[tuple[str, int, int], int] = {}  # kind, stage, micro-batch
    places: list[list[int]] = [[] for _ in range(devices)]
    waiting = list(range(devices))
    while waiting:
        progressed = len(nodes)
        for device in waiting:
            mine, steps = places[device], orders[device].steps
            while len(mine) < len(steps):
                kind, chunk, micro_batch = steps[len(mine)]
                stage = stage_of(schedule, device, chunk, devices)
                other = {"F": stage - 1, "B": stage + 1, "W": -1}[kind]
                needs, lag = -1, nowhere
                if 0 <= other < stages:
                    if (needs := done.get((kind, other, micro_batch), -1)) < 0:
                        break
                    lag = nowhere if device_of[other] == device else min(stage, other)
                done[kind, stage, micro_batch] = len(nodes)
                cost = (device * virtual_stages + chunk) * 3 + "FBW".index(kind)
                nodes.append(_Node(mine[-1] if mine else -1, needs, cost, lag))
                mine.append(len(nodes) - 1)
        assert len(nodes) > progressed, "the schedule waits for itself"
        waiting = [device for device in waiting if len(places[device]) < len(orders[device].steps)]
    return _Program(tuple(nodes), tuple(map(tuple, places)), orders)
