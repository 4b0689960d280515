"""Which operation a pipeline device runs after which, for every schedule.

F is the forward pass of one micro-batch through one of the device's model chunks. B is the backward pass: all of it, or, where
the schedule splits it (zero bubble), the gradient of the input alone, with the gradient of the weights as an operation W of its
own. The orders are those of torch.distributed.pipelining: GPipe (Huang et al. 2018, arXiv 1811.06965), 1F1B and interleaved 1F1B
(Narayanan et al. 2021, arXiv 2104.04473), ZB-H1 over any number of chunks and ZB-V (Qi et al. 2023, arXiv 2401.10241).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Kind = Literal["F", "B", "W"]


class Step(NamedTuple):
    """One operation of a device."""

    kind: Kind
    chunk: int
    micro_batch: int


class Order(NamedTuple):
    """What one device does. More micro-batches lengthen ``steps[steady]`` by whole periods and shift what follows."""

    steps: tuple[Step, ...]
    steady: range
    """Positions of the part that repeats itself."""
    period: int
    """Steps after which it does, with ``round_size`` more micro-batches."""


def splits_backward(schedule: Schedule) -> bool:
    """Whether the gradients of weights are operations of their own."""
    return schedule in ("zero-bubble", "zero-bubble-v")


def stage_of(schedule: Schedule, device: int, chunk: int, devices: int) -> int:
    """Which stage of the model, counted from the embedding, a device's chunk is: round and round, or there and back (V)."""
    if schedule == "zero-bubble-v" and chunk == 1:
        return 2 * devices - 1 - device
    return chunk * devices + device


def round_size(schedule: Schedule, devices: int, micro_batches: int, virtual_stages: int) -> int:
    """Micro-batches that pass one chunk before the device turns to its next; the orders repeat with it."""
    return micro_batches // max(1, micro_batches // devices) if _rounds(schedule, virtual_stages) else 1


def problem(schedule: Schedule, devices: int, micro_batches: int, virtual_stages: int) -> str | None:
    """Why the schedule cannot be, or None."""
    if min(devices, micro_batches, virtual_stages) < 1:
        return "devices, micro-batches and virtual stages are at least 1"
    if schedule in ("gpipe", "1f1b") and virtual_stages > 1:
        return f"{schedule} has one stage a device, not {virtual_stages}"
    if schedule == "zero-bubble-v" and virtual_stages != 2:
        return f"zero-bubble-v has two stages a device, not {virtual_stages}"
    rounds = max(1, micro_batches // devices)
    if _rounds(schedule, virtual_stages) and micro_batches % rounds:
        return f"{micro_batches} micro-batches do not divide into {rounds} rounds over {devices} devices"
    return None


def _rounds(schedule: Schedule, virtual_stages: int) -> bool:
    return virtual_stages > 1 and schedule in ("interleaved", "zero-bubble")


@lru_cache(maxsize=4096)
def order(schedule: Schedule, device: int, devices: int, micro_batches: int, virtual_stages: int) -> Order:
    """The device's operations. ValueError: the schedule cannot be (see `problem`)."""
    if (why := problem(schedule, devices, micro_batches, virtual_stages)) is not None:
        raise ValueError(why)
    if schedule == "gpipe":
        steps = [Step(kind, 0, m) for kind in ("F", "B") for m in range(micro_batches)]
        return Order(tuple(steps), range(0), 1)
    if schedule == "zero-bubble-v":
        return _there_and_back(device, devices, micro_batches)
    return _one_forward_one_backward(schedule, device, devices, micro_batches, virtual_stages)


def _one_forward_one_backward(schedule: Schedule, device: int, devices: int, micro_batches: int, chunks: int) -> Order:
    """Warm-up forwards, then pairs of one forward and one backward, then the backwards that are left.

    Zero bubble adds to every backward the weight gradient of the one `device` places before it, and has the rest at the end.
    """
    group = round_size(schedule, devices, micro_batches, chunks)
    total, after = micro_batches * chunks, devices - 1 - device
    split = splits_backward(schedule)
    # Interleaved chunks hand over to the first device again: two places of head start for each device behind, else one.
    warmup = min((chunks - 1) * group + (2 if schedule == "interleaved" and chunks > 1 else 1) * after, total)
    forward = _numbered("F", total, group, chunks)
    backward = _numbered("B", total, group, chunks)
    weight = [step._replace(kind="W") for step in backward]
    late = device if split else total  # backwards before the first weight gradient
    steps = forward[:warmup]
    for number in range(total):
        steps += forward[warmup + number : warmup + number + 1]
        steps.append(backward[number])
        if number >= late:
            steps.append(weight[number - late])
    if split:
        steps += weight[max(0, total - late) :]
    pairs, width = total - warmup, 3 if split else 2
    begin = warmup + (2 * min(late, pairs) if split else 0)
    end = warmup + 2 * pairs + (max(0, pairs - late) if split else 0)
    return Order(tuple(steps), range(begin, end), width * group * chunks)


def _numbered(kind: Kind, total: int, group: int, chunks: int) -> list[Step]:
    """Chunk and micro-batch of a device's forward or backward passes in order: a round of micro-batches a chunk."""
    steps = []
    for number in range(total):
        turn, place = divmod(number, group)
        passes, chunk = divmod(turn, chunks)
        steps.append(Step(kind, chunk if kind == "F" else chunks - 1 - chunk, passes * group + place))
    return steps


def _there_and_back(device: int, devices: int, micro_batches: int) -> Order:
    """ZB-V: chunk 0 on the way there, chunk 1 on the way back, so that the last stage is on the first device.

    The order is made for as many micro-batches as fill the pipeline; those that there are not are left out.
    """
    made = {(kind, chunk): 0 for kind in ("F", "B", "W") for chunk in (0, 1)}
    steps: list[Step] = []

    def add(*wanted: tuple[Kind, int]) -> None:
        for kind, chunk in wanted:
            steps.append(Step(kind, chunk, made[kind, chunk]))
            made[kind, chunk] += 1

    total = max(2 * devices - 1, micro_batches)
    for _ in range(2 * (devices - device) - 1):
        add(("F", 0))
    for _ in range(device):
        add(("F", 1), ("F", 0))
    for _ in range(devices - device):
        add(("F", 1), ("B", 1), ("W", 1))
    begin = len(steps)
    while made["F", 0] < total:
        add(("F", 0), ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    end = len(steps)
    while made["F", 1] < total:
        add(("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    for _ in range(device):
        add(("B", 0), ("B", 1))
    for _ in range(devices - device):
        add(("B", 0), ("W", 0))
    for chunk in (1, 0):
        while made["W", chunk] < total:
            add(("W", chunk))
    if micro_batches < total:
        steps, begin, end = [step for step in steps if step.micro_batch < micro_batches], 0, 0
    return Order(tuple(steps), range(begin, end), 6)


@lru_cache(maxsize=4096)
def in_flight(
    schedule: Schedule, device: int, devices: int, micro_batches: int, virtual_stages: int, layers: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Micro-batches whose activations each of the device's chunks holds at the moment when it holds most in all.

    They are held from the start of F to the end of B, or of W where the backward pass is split. The order alone decides, not the
    costs, and beyond a few rounds more micro-batches change nothing. ``layers`` are those of each chunk; without, all are alike.
    """
    if schedule == "gpipe":
        return (micro_batches,)
    if schedule == "1f1b":
        return (min(devices - device, micro_batches),)
    group = round_size(schedule, devices, micro_batches, virtual_stages)
    enough = group * -(-4 * devices // group)
    steps = order(schedule, device, devices, min(micro_batches, enough), virtual_stages).steps
    release = "W" if splits_backward(schedule) else "B"
    sizes = layers or (1,) * virtual_stages
    held, most = [0] * virtual_stages, (0,) * virtual_stages
    now = largest = 0
    for step in steps:
        if step.kind == "F":
            held[step.chunk] += 1
            now += sizes[step.chunk]
            if now > largest:
                most, largest = tuple(held), now
        elif step.kind == release:
            held[step.chunk] -= 1
            now -= sizes[step.chunk]
    return most
