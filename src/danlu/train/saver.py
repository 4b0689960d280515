"""Saves a run's checkpoints: each process writes its part, at once or in a thread of its own while training goes on.

A thread never talks to another process: it writes, syncs and sums up this process's files, no more. The processes meet in the
main thread at the end of a step, where all of them are anyway, and the first one puts the manifest to it and renames. So no
collective of a save can cross one of the training.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from danlu.engines.base import Engine, Snapshot
from danlu.files import why
from danlu.pace import Pace, paced
from danlu.train import checkpoint

SHARE = 0.1
"""Of a core, for the thread: more would slow down the steps where training leaves no core idle."""
_NICE = 10
"""A tenth of a core where training leaves none idle. With next to nothing it would hold Python's lock, which training waits for,
as long as other programs keep it from its turn."""


class Saved(NamedTuple):
    """A checkpoint that is complete. Seconds since it was begun, and those of them in which training stood still."""

    path: Path
    seconds: float
    stood_still: float


@dataclass
class _Part:
    """What this process writes of the checkpoint of a step."""

    step: int
    state: dict[str, Any]
    keep: int | None
    begun: float
    stood_still: float = 0.0
    sums: checkpoint.Sums = field(default_factory=dict)
    failed: Exception | None = None
    thread: threading.Thread | None = None
    pace: Pace = field(default_factory=lambda: Pace(SHARE))

    def write(self, folder: Path, snapshot: Snapshot) -> None:
        try:
            self.sums = checkpoint.write_part(folder, self.step, snapshot.write)
        except Exception as error:  # raised again in the main thread
            self.failed = error


class Saver:
    """One checkpoint at a time; all processes of a layout call the same methods at the same steps."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.part: _Part | None = None

    def begin(self, step: int, state: dict[str, Any], keep: int | None, background: bool) -> None:
        """Take the state as it is now and write it, in the background or at once. The save before must be finished."""
        assert self.part is None
        part = self.part = _Part(step, state, keep, time.perf_counter())
        snapshot = self.engine.snapshot(copy=background)
        state["engine"] = snapshot.state
        if self.engine.rank == 0:
            try:
                checkpoint.prepare(self.folder, step)
            except OSError as error:
                part.failed = error
        self.engine.agree(False)  # the folder is there
        if part.failed is None and background:
            part.thread = threading.Thread(target=self._in_background, args=(part, snapshot), daemon=True)
            part.thread.start()
        elif part.failed is None:
            part.write(self.folder, snapshot)
        part.stood_still = time.perf_counter() - part.begun

    def finish(self, wait: bool) -> Saved | None:
        """Complete what was begun, if all processes have written; with ``wait``, when they have. None: not yet, or nothing.

        RunStopped: one could not write; the checkpoints that were there are untouched.
        """
        if (part := self.part) is None:
            return None
        start = time.perf_counter()
        writing = part.thread is not None and part.thread.is_alive()
        if not wait and self.engine.agree(writing):
            return None
        if part.thread is not None:
            part.pace.hurry()
            part.thread.join()
        self.part = None
        try:
            path = self._complete(part)
        except OSError as error:
            raise checkpoint.unwritten(self.folder, part.step, why(error)) from error
        finally:
            if self.engine.rank == 0:
                checkpoint.remove_unfinished(self.folder, part.step)
        now = time.perf_counter()
        return Saved(path, now - part.begun, part.stood_still + now - start)

    def _complete(self, part: _Part) -> Path:
        if part.failed is not None and not isinstance(part.failed, OSError):
            raise part.failed
        failures = self.engine.gather(None if part.failed is None else why(part.failed))
        if reason := next(filter(None, failures), None):
            raise checkpoint.unwritten(self.folder, part.step, reason) from part.failed
        sums = {name: each for process in self.engine.gather(part.sums) for name, each in process.items()}
        if self.engine.rank == 0:
            checkpoint.complete(self.folder, part.step, part.state, sums, part.keep)
        return checkpoint.place(self.folder, part.step)

    def _in_background(self, part: _Part, snapshot: Snapshot) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        with paced(part.pace):
            part.write(self.folder, snapshot)
