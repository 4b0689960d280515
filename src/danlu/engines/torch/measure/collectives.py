"""Seconds of collectives among all processes, by bytes of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from danlu.engines.torch.measure.clock import Clock

SIZES = {"cpu": (64, 1 << 12, 1 << 16, 1 << 20, 1 << 23), "cuda": (64, 1 << 20, 1 << 24, 1 << 28)}


def collectives(clock: Clock) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each of ``plan.measured.COLLECTIVES``. On a CPU all but the empty message amid computation."""
    empty, *sizes = SIZES[clock.device.type]
    found: dict[str, list[tuple[float, float]]] = {}
    for name, make in _CASES.items():
        least = clock.together(make(clock.device, empty))
        found[name] = [(empty, least)]
        for size in sizes:
            call = make(clock.device, size)
            seconds = clock.together(call) if clock.device.type == "cuda" else clock.amid(call)
            found[name].append((size, max(least, seconds)))
    return found


def _all_reduce(device: torch.device, size: int) -> Callable[[], object]:
    whole = torch.zeros(size // 4, device=device)
    return lambda: dist.all_reduce(whole)


def _all_gather(device: torch.device, size: int) -> Callable[[], object]:
    part = torch.zeros(size // 4 // dist.get_world_size(), device=device)
    whole = torch.zeros(part.numel() * dist.get_world_size(), device=device)
    return lambda: dist.all_gather_single(whole, part)


def _reduce_scatter(device: torch.device, size: int) -> Callable[[], object]:
    part = torch.zeros(size // 4 // dist.get_world_size(), device=device)
    whole = torch.zeros(part.numel() * dist.get_world_size(), device=device)
    return lambda: dist.reduce_scatter_single(part, whole)


def _send(device: torch.device, size: int) -> Callable[[], object]:
    """To the next process, which sends to the one after it at the same time, as the last does to nobody."""
    out, into, rank = torch.zeros(size // 4, device=device), torch.zeros(size // 4, device=device), dist.get_rank()

    def pass_on() -> None:
        ends = []
        if rank + 1 < dist.get_world_size():
            ends.append(dist.P2POp(dist.isend, out, rank + 1))
        if rank > 0:
            ends.append(dist.P2POp(dist.irecv, into, rank - 1))
        for work in dist.batch_isend_irecv(ends):
            work.wait()

    return pass_on


_CASES: dict[str, Callable[[torch.device, int], Callable[[], object]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "send": _send,
}
