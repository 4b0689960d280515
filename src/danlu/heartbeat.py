"""What each process of a layout does, since when, and whether it gets on: one small file a rank, which a watchdog reads.

The training loop and the engine say what they begin and tick as they get on; without ``start`` both do nothing. A process that
is asked for it (a file beside the heartbeats) answers from a thread of its own where it stands: its stacks, and what its
framework has in flight.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

SIZE = 512
"""Bytes of a record: one write, so that a reader sees the old or the new one."""
ASK_SECONDS = 0.5
ASKED = "where-are-you"
DONE = "done"


class Beat(NamedTuple):
    """The last sign of a rank. ``first``: what it does takes longer the first time, such as a step that is compiled."""

    rank: int
    host: str
    pid: int
    ticks: int
    doing: str
    first: bool


def beat_file(logs: Path, rank: int) -> Path:
    return logs / f"beat-{rank}.json"


def stack_file(logs: Path, rank: int) -> Path:
    """Where a rank leaves its stacks, in the format of faulthandler."""
    return logs / f"stack-{rank}.txt"


def flight_file(logs: Path, rank: int) -> Path:
    """Where a rank leaves the names of the collectives that it has in flight (JSON)."""
    return logs / f"in-flight-{rank}.json"


def read(logs: Path) -> list[Beat]:
    """The last sign of every rank that has given one, by rank."""
    found = []
    for path in logs.glob("beat-*.json"):
        try:
            found.append(Beat(**json.loads(path.read_bytes())))
        except (OSError, ValueError, TypeError):  # being made
            continue
    return sorted(found)


class _Heartbeat:
    def __init__(self, logs: Path, rank: int, in_flight: Callable[[], list[str]]) -> None:
        self.logs, self.rank, self.in_flight = logs, rank, in_flight
        self.host, self.ticks, self.last = socket.gethostname(), 0, ("starts", True)
        self.handle = os.open(beat_file(logs, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.stack: IO[str] = stack_file(logs, rank).open("w")
        # From outside also when no thread of Python's gets to run.
        faulthandler.register(signal.SIGUSR2, self.stack, all_threads=True)
        threading.Thread(target=self._answer, name="heartbeat", daemon=True).start()

    def beat(self, doing: str | None = None, first: bool = False) -> None:
        self.ticks += 1
        if doing is not None:
            self.last = (doing, first)
        record: dict[str, Any] = Beat(self.rank, self.host, os.getpid(), self.ticks, *self.last)._asdict()
        os.pwrite(self.handle, json.dumps(record).encode().ljust(SIZE), 0)

    def _answer(self) -> None:
        while not (self.logs / ASKED).exists():
            time.sleep(ASK_SECONDS)
        faulthandler.dump_traceback(self.stack, all_threads=True)
        flight_file(self.logs, self.rank).write_text(json.dumps(self.in_flight()), encoding="utf-8")


_own: _Heartbeat | None = None


def start(logs: Path, rank: int, in_flight: Callable[[], list[str]]) -> None:
    """Begin to give signs of this process; ``in_flight`` names the collectives that it has begun and not ended."""
    global _own
    logs.mkdir(exist_ok=True)
    _own = _Heartbeat(logs, rank, in_flight)
    os.register_at_fork(after_in_child=_stop)  # a loader's worker is not the rank
    doing("starts", first=True)


def started() -> bool:
    """Whether this process gives signs: it is a rank of several."""
    return _own is not None


def doing(what: str, first: bool = False) -> None:
    """Say what begins. With ``first`` it may take long, since it happens for the first time since the start."""
    if _own is not None:
        _own.beat(what, first)


def tick() -> None:
    """Say that it gets on."""
    if _own is not None:
        _own.beat()


def _stop() -> None:
    global _own
    _own = None
