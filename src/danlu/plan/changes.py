"""What would have to change when nothing fits: each change alone, and as small as can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from danlu.plan import hardware as devices_known
from danlu.plan.hardware import Hardware
from danlu.plan.request import Request
from danlu.plan.search import Plan, fits
from danlu.plan.space import device_numbers, layouts
from danlu.plan.words import gigabytes
from danlu.plural import many

SHORTEST = 128
"""Tokens of a sample below which no shorter one is proposed."""
TRIED = 16
"""Numbers of devices below the given one that are tried."""


@dataclass(frozen=True)
class Change:
    """Something that would make the training fit, alone."""

    text: str
    plan: Plan
    request: Request
    """The training after the change."""


def smallest_changes(request: Request, hardware: Hardware, devices: int) -> list[Change]:
    """What would fit when nothing does; the changes that lose least come first. Fewer layers only where nothing else would do."""
    found = [*_released(request, hardware, devices), *_precision(request, hardware, devices)]
    if not any(True for precision in request.precisions for _ in layouts(request, hardware, devices, precision)):
        found += [*_fewer_devices(request, hardware, devices), *_larger_batch(request, hardware, devices)]
    found += [*_shorter(request, hardware, devices), *_more_devices(request, hardware, devices)]
    found += _larger_device(request, hardware, devices)
    return found or [*_fewer_layers(request, hardware, devices)]


def _released(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Without one of the settings that were given."""
    for name, value in request.fixed.items():
        others = request.with_(fixed={key: each for key, each in request.fixed.items() if key != name})
        if (plan := fits(others, hardware, devices)) is not None:
            yield Change(f"{name} {getattr(plan.job, name)} instead of {value}", plan, others)


def _precision(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """In 16 bit, where FP32 alone was allowed."""
    mixed = request.with_(precisions=("bf16",))
    if request.precisions == ("fp32",) and (plan := fits(mixed, hardware, devices)) is not None:
        yield Change("mixed precision (bf16)", plan, mixed)


def _fewer_devices(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """As many as a layout can feed."""
    numbers = [number for number in device_numbers(request, hardware) if number < devices]
    for number in islice(reversed(numbers), TRIED):
        if (plan := fits(request, hardware, number)) is not None:
            yield Change(f"{many(number, 'device')} instead of {devices:,}", plan, request)
            return


def _larger_batch(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """So many samples a step that each device has some to do. The whole training keeps its tokens."""
    batch = request.global_batch
    for size in sorted({*(batch << times for times in range(1, 21)), -(-batch // devices) * devices}):
        larger = request.with_(global_batch=size, steps=request.steps * batch / size)
        if size > batch and (plan := fits(larger, hardware, devices)) is not None:
            yield Change(f"{many(size, 'sample')} a step instead of {batch:,}", plan, larger)
            return


def _shorter(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Fewer tokens a micro-batch: one sample is the least, so it has to be shorter. The step keeps its tokens."""
    times = 2
    while request.sequence // times >= SHORTEST:
        length = request.sequence // times
        if request.sequence % times:
            length -= length % SHORTEST  # a round number, since the given one is none
        less = request.with_(sequence=length, global_batch=request.global_batch * times)
        if (plan := fits(less, hardware, devices)) is not None:
            yield Change(f"samples of {length:,} tokens instead of {request.sequence:,}", plan, less)
            return
        times *= 2


def _more_devices(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Twice as many, and so on, and the powers of two between them."""
    doubled = [devices << times for times in range(1, 20)]
    powers = [1 << times for times in range(20) if 1 << times > devices]
    for number in sorted({*doubled, *powers}):
        if (plan := fits(request, hardware, number)) is not None:
            yield Change(f"{many(number, 'device')} instead of {devices:,}", plan, request)
            return


def _larger_device(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    known = [devices_known.load(name) for name in devices_known.names()]
    for other in sorted(known, key=lambda each: (each.memory, each.price)):
        if other.memory > hardware.memory and (plan := fits(request, other, devices)) is not None:
            yield Change(f"{other.name} ({gigabytes(other.memory)}) instead of {hardware.name}", plan, request)
            return


def _fewer_layers(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """The deepest model that fits, halving what is between one that does and one that does not."""
    one = request.dimensions
    low, high = 0, one.layers
    change = None
    while high - low > 1:
        layers = (low + high) // 2
        less = request.with_(dimensions=replace(one, layers=layers), shape=None)
        if (plan := fits(less, hardware, devices)) is None:
            high = layers
        else:
            low, change = layers, Change(f"{many(layers, 'layer')} instead of {one.layers:,}", plan, less)
    if change is not None:
        yield change
