"""Ctrl-C once: finish the step and save. Twice: stop now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

NOTICE = "interrupted: finishing this step and saving; Ctrl-C once more stops at once"


class Interrupt:
    """Whether somebody asked the run to end."""

    requested = False


@contextmanager
def watched() -> Iterator[Interrupt]:
    """Turn the first SIGINT or SIGTERM into a request, and say so on stderr; a SIGINT after it raises KeyboardInterrupt.

    SIGTERM is what SLURM and Kubernetes send before they kill. Outside the main thread nothing is caught.
    """
    interrupt = Interrupt()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interrupt.requested:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        interrupt.requested = True
        # Not by print: the signal may have come in the middle of one, and Python's streams cannot be entered twice.
        with suppress(OSError):
            os.write(2, f"\n{NOTICE}\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
