"""The least time that something takes: what disturbs a measurement only ever makes it longer."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

BUDGET = 0.03
"""Seconds spent on each figure, and again when all have had theirs."""
FEWEST = 3
OTHERS = {"cpu": 32 << 20, "cuda": 64 << 20}
"""Bytes of other tensors between two calls: more than a core's own cache, or a GPU's."""
TOGETHER = 25
"""Repeats of what all processes do together: all must make the same number."""

PRODUCT = 384
"""Width of the matrices whose products stand for computation."""
BETWEEN = 0.006
"""Seconds of computation between two collectives, as in a layer of a small model."""
AMID, ROUNDS = 8, 6


class Clock:
    """Times calls on one device; with one thread on a CPU in seconds of that thread, which other programs hardly change."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._others = torch.zeros(OTHERS[device.type] // 4, device=device)
        self._now = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def least(self, call: Callable[[], object], budget: float = BUDGET, cold: bool = True) -> float:
        """Seconds of the quickest of several calls, after one that does not count.

        A call in a loop finds what it reads in the nearest cache, where in a step other tensors have taken its place: cold, some
        are written before each call.
        """
        call()
        self._wait()
        found, calls, until = float("inf"), 0, time.perf_counter() + budget
        while calls < FEWEST or time.perf_counter() < until:
            if cold:
                self._others.add_(1)
                self._wait()
            begun = self._now()
            call()
            self._wait()
            found, calls = min(found, self._now() - begun), calls + 1
        return found

    def together(self, call: Callable[[], object]) -> float:
        """The same for what all processes do together: the wall time of the one that took longest."""
        found = float("inf")
        for _ in range(TOGETHER):
            dist.barrier()
            self._wait()
            begun = time.perf_counter()
            call()
            self._wait()
            taken = torch.tensor(time.perf_counter() - begun, dtype=torch.float64, device=self.device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            found = min(found, float(taken))
        return found

    def amid(self, call: Callable[[], object]) -> float:
        """Seconds that it adds to computing: processes come to it one after the other, and wake up late from waiting."""
        product = torch.randn(PRODUCT, PRODUCT, device=self.device)
        once = torch.tensor(self.least(lambda: product @ product, cold=False), dtype=torch.float64, device=self.device)
        dist.all_reduce(once, dist.ReduceOp.MAX)
        products = max(1, round(BETWEEN / float(once)))

        def repeated(*calls: Callable[[], object]) -> float:
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(AMID):
                for _ in range(products):
                    product @ product
                for each in calls:
                    each()
            dist.barrier()
            return (time.perf_counter() - begun) / AMID

        pairs = [(repeated(call), repeated()) for _ in range(ROUNDS)]
        added = torch.tensor(min(with_it for with_it, _ in pairs) - min(bare for _, bare in pairs), dtype=torch.float64)
        dist.all_reduce(added, dist.ReduceOp.MAX)
        return float(added)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
