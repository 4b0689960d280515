"""A profile of some steps by torch.profiler, and the rate at which this device moves memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

COPY_SECONDS = 0.2
"""How long copies are timed; the best one counts, since others may use the machine too."""
COPY_BYTES = 64 << 20
"""Of a copy: more than caches hold."""
COPIES = 5
"""At least, after one that is not timed, since it finds its target's pages."""


class StepProfile:
    """Operators with their shapes, kernels, and what is allocated, from the start to the end."""

    def __init__(self, device: torch.device) -> None:
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profile = profile(activities=kinds, record_shapes=True, profile_memory=True)
        self.profile.start()

    def end(self) -> Callable[[Path], None]:
        """End; what is returned writes a Chrome trace (.json or .json.gz)."""
        self.profile.stop()
        return lambda trace: self.profile.export_chrome_trace(str(trace))


def copy_peak(device: torch.device) -> float:
    """Bytes a second that a copy between two places in the device's memory reads and writes together."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    best, copies, started = math.inf, 0, time.perf_counter()
    while time.perf_counter() - started < COPY_SECONDS or copies < COPIES:
        copies += 1
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best
