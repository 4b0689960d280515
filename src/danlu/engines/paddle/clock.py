"""Where the time of a step goes: forward, backward and optimizer, by the clock of the host.

A GPU is given work ahead of time, so that there these are the seconds in which it was given it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up seconds by part."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """A part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.totals[part] += time.perf_counter() - began

    def take(self) -> dict[str, float]:
        """Seconds of each part since the last call."""
        taken, self.totals = dict(self.totals), defaultdict(float)
        return taken
