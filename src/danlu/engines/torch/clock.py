"""Where the time of a step goes: forward, backward, optimizer, and waiting for other processes wherever that happens.

On a CPU by the clock of the host; on a GPU by events on its stream, without waiting for it: what is still under way at the end of
a step is counted with the next one. There, sharding waits for its communication on streams of its own, and that time is in the
part that waits for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed import _functional_collectives

OTHER = "other"
COMMUNICATION = "communication"


class Clock:
    """Adds up seconds by part. One part is going on at a time; a part inside another interrupts it."""

    def __init__(self, device: torch.device) -> None:
        self.events = device.type == "cuda"
        self.part = OTHER
        self.totals: dict[str, float] = defaultdict(float)
        self.marks: list[tuple[str, Any]] = []
        """Parts that have ended, and when, the oldest first; the first one ended before what is counted."""
        self.begin()

    def begin(self) -> None:
        """What was before is not counted, but for what a GPU has yet to do of the last step."""
        if not self.events:
            self.totals.clear()
            self.marks.clear()
        self._mark()
        self.part = OTHER

    def switch(self, part: str) -> str:
        """Begin a part; returns the one that it interrupts."""
        self._mark()
        interrupted, self.part = self.part, part
        return interrupted

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """A part."""
        interrupted = self.switch(part)
        try:
            yield
        finally:
            self.switch(interrupted)

    def take(self) -> dict[str, float]:
        """Seconds of each part but OTHER, as far as they are known."""
        self._mark()
        if self.events:
            self._settle()
        taken = {part: seconds for part, seconds in self.totals.items() if part != OTHER}
        self.totals.clear()
        return taken

    def watch(self, stage: nn.Module) -> None:
        """Count a module's forward passes."""
        interrupted: list[str] = []

        def begins(*_: Any) -> None:
            interrupted.append(self.switch("forward"))

        def ends(*_: Any) -> None:
            self.switch(interrupted.pop())

        stage.register_forward_pre_hook(begins, prepend=True)
        stage.register_forward_hook(ends, always_call=True)

    def _mark(self) -> None:
        if self.events:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.marks.append((self.part, event))
            return
        now = time.perf_counter()
        if self.marks:
            self.totals[self.part] += now - self.marks[0][1]
        self.marks[:] = [(self.part, now)]

    def _settle(self) -> None:
        while len(self.marks) > 1 and self.marks[1][1].query():
            (_, began), (part, ended) = self.marks[:2]
            self.totals[part] += began.elapsed_time(ended) / 1000
            del self.marks[0]


_running: Clock | None = None


def count_waits(clock: Clock) -> None:
    """Count as communication what the process waits for collectives from now on, whoever calls them."""
    global _running
    from torch._C._distributed_c10d import Work

    if _running is None:
        setattr(Work, "wait", _counted(Work.wait))  # noqa: B010
        setattr(_functional_collectives, "wait_tensor", _counted(_functional_collectives.wait_tensor))  # noqa: B010
    _running = clock


def _counted(wait: Any) -> Any:
    def counted(*arguments: Any, **named: Any) -> Any:
        assert _running is not None
        if torch.compiler.is_compiling():
            return wait(*arguments, **named)
        with _running.during(COMMUNICATION):
            return wait(*arguments, **named)

    return counted
