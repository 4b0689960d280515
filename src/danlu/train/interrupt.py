"""Ctrl-C once: finish the step and save. Twice: stop now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody asked the run to end."""

    requested = False


@contextmanager
def watched(notify: Callable[[str], None]) -> Iterator[Interrupt]:
    """Turn the first SIGINT or SIGTERM into a request; the second SIGINT raises KeyboardInterrupt.

    SIGTERM is what SLURM and Kubernetes send before they kill. Outside the main thread nothing is caught.
    """
    interrupt = Interrupt()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interrupt.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.requested = True
        notify("interrupted: finishing this step and saving; once more to stop now")

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
