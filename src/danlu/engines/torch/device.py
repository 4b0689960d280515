"""The device of this process, and how fast it multiplies."""

from __future__ import annotations

import math
import os
import time

import torch

from danlu.errors import UserError

PEAK_SECONDS = 0.3
"""How long the matmul peak is measured; the best product of that time counts, since others may use the machine too."""


def device_for(wanted: str) -> torch.device:
    """This process's, of ``cpu``, ``cuda`` or ``auto``. UserError: there is no GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device: cuda was asked for, but torch sees no GPU here; use train.device=cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))  # one GPU a process
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def wait(place: torch.device) -> None:
    """Until what was begun on a GPU is done."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def matmul_peak(place: torch.device, dtype: torch.dtype) -> float | None:
    """Best rate of products of square matrices over a third of a second, FLOP/s."""
    if place.type == "cpu" and dtype == torch.float16:
        return None  # emulated on most CPUs: slower than the FP32 that is in the rest of a step
    size = 2048 if place.type == "cpu" else 8192
    left = torch.ones(size, size, dtype=dtype, device=place)
    best, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < PEAK_SECONDS or best == math.inf:
        wait(place)
        start = time.perf_counter()
        left @ left
        wait(place)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
