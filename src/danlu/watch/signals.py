"""The signals of runs in memory: whole at first, then only what is new is read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from danlu.errors import UserError
from danlu.watch import store
from danlu.watch.coarse import LONG, length
from danlu.watch.ends import Part, mark, parts

BYTES = 1 << 30
"""Memory that signals may take; beyond it those that were not asked for longest go."""

LEAST_BYTES = 10
"""Of a value in the file."""
PORTION = 20_000
FIRST_SIGHT_SECONDS = 0.5
"""Before a long signal is read in the background: first sights of other charts go first."""


@dataclass(frozen=True)
class _Held:
    mark: tuple[Any, ...]
    """Of the file before it was read."""
    segments: tuple[tuple[int, int], ...]
    """Number and first step of every segment when this was read: another start of the run may replace what is held."""
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    @property
    def bytes(self) -> int:
        return self.steps.nbytes + self.values.nbytes


class Signals:
    """For several threads: nobody waits for a signal that another one reads, unless it is the same."""

    def __init__(self, limit: int = BYTES) -> None:
        self.limit = limit
        self._held: OrderedDict[tuple[Path, str], _Held] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._reading: dict[tuple[Path, str], threading.Lock] = {}
        self._wanted: SimpleQueue[tuple[Path, str]] = SimpleQueue()
        self._on_the_way: set[tuple[Path, str]] = set()
        self._thread: threading.Thread | None = None

    def series(self, path: Path, name: str) -> store.Series:
        """As `store.series`."""
        key = (path, name)
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        with reading:
            held = self._fresh(path, name, self._held.get(key))
            with self._lock:
                self._bytes += held.bytes - (self._held[key].bytes if key in self._held else 0)
                self._held[key] = held
                self._held.move_to_end(key)
                while len(self._held) > 1 and self._bytes > self.limit:
                    self._bytes -= self._held.popitem(last=False)[1].bytes
        return held.steps, held.values

    def soon(self, path: Path, name: str) -> store.Series | None:
        """The same, unless it is long and not in memory yet: then None, and it is read in the background."""
        key = (path, name)
        if key not in self._held and (key in self._on_the_way or (_may_be_long(path) and length(path, name) > LONG)):
            if key not in self._on_the_way:
                self._on_the_way.add(key)
                self._wanted.put(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._read_wanted, name="danlu-signals", daemon=True)
                self._thread.start()
            return None
        return self.series(path, name)

    def _read_wanted(self) -> None:
        while True:
            key = self._wanted.get()
            time.sleep(FIRST_SIGHT_SECONDS)
            try:
                self.series(*key)
            except UserError:  # whoever asks for it next is told
                pass
            finally:
                self._on_the_way.discard(key)

    def _fresh(self, path: Path, name: str, held: _Held | None) -> _Held:
        now = mark(path)
        if held is not None and held.mark == now:
            return held
        found = store.segments(path)
        segments = tuple((one.id, one.first_step) for one in found)
        if held is None or held.segments != segments or not len(held.steps):
            return _Held(now, segments, *_whole(path, name, parts(found)))
        since = int(held.steps[-1])
        steps, values = _tail(path, name, segments[-1][0], since)
        if len(steps) and steps[-1] == since and held.values[-1] == values[-1]:
            return replace(held, mark=now)
        kept = -1 if len(steps) and steps[0] == since else None  # the last value may have been replaced
        return _Held(now, segments, np.concatenate([held.steps[:kept], steps]), np.concatenate([held.values[:kept], values]))


def _may_be_long(path: Path) -> bool:
    """Whether a metrics file is large enough to hold a long signal, which spares most the look."""
    files = [file for file in (path, Path(f"{path}-wal")) if file.exists()]
    with suppress(OSError):  # gone meanwhile
        return sum(file.stat().st_size for file in files) > LONG * LEAST_BYTES
    return False


def _whole(path: Path, name: str, counting: list[Part]) -> store.Series:
    """As `store.series`, in portions, so that other threads are never kept waiting long."""
    query = 'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?'
    portions = [np.empty((0, 2))]
    with store.reading(path) as connection:
        for segment, _, end in reversed(counting):
            cursor = connection.execute(query, (name, segment, end))
            while rows := cursor.fetchmany(PORTION):
                portions.append(np.array(rows, dtype=np.float64))
    table = np.concatenate(portions)
    steps, first = np.unique(table[:, 0].astype(np.int64), return_index=True)  # the newest segment came first
    return steps, table[first, 1]


def _tail(path: Path, name: str, segment: int, since: int) -> store.Series:
    """A signal in one segment from a step on."""
    query = 'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step >= ?'
    with store.reading(path) as connection:
        table = np.array(connection.execute(query, (name, segment, since)).fetchall(), dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]
