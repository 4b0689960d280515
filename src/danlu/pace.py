"""A thread that works beside a computation takes little of it: after each piece of work it rests for a multiple of the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK_BYTES = 4 << 20
"""What is read or written between two rests: some milliseconds."""


class Pace:
    """Share of one core that the thread takes; another thread may raise it when it begins to wait for this one."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.hurried = threading.Event()

    def hurry(self) -> None:
        """No rest any more."""
        self.hurried.set()

    def rest(self, worked: float) -> None:
        """After so many seconds of work."""
        self.hurried.wait(worked * (1 / self.share - 1))


_own = threading.local()


@contextmanager
def paced(pace: Pace) -> Iterator[None]:
    """This thread works at that pace."""
    _own.pace = pace
    try:
        yield
    finally:
        del _own.pace


def chunks(size: int) -> Iterator[slice]:
    """Pieces of so many bytes, to be worked on one after another; between them the thread rests if it has a pace."""
    pace: Pace | None = getattr(_own, "pace", None)
    for first in range(0, size, CHUNK_BYTES):
        start = time.perf_counter()
        yield slice(first, min(first + CHUNK_BYTES, size))
        if pace is not None:
            pace.rest(time.perf_counter() - start)
