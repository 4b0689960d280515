"""Writes the metrics of a run: values, histograms, events and segments, safe against crashes and any fault of the disk.

`schema` says what is in the file; `store` reads it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from danlu.watch.histogram import Histogram
from danlu.watch.schema import BUSY_SECONDS, SCHEMA, check_format, packed

COMMIT_SECONDS = 1.0
"""Time between commits; with one commit in flight, a crash loses at most twice this."""


@dataclass(eq=False)
class _Opened:
    """A segment of this process; `id` is None until the file holds it."""

    started: float
    first_step: int
    info: str
    id: int | None = None
    guest: bool = False
    """Stands for another process's segment, the newest in the file, if there is one; only its owner keeps that alive."""


class _Scalars(NamedTuple):
    segment: _Opened
    step: int
    time: float
    values: dict[str, float]


class _Spreads(NamedTuple):
    segment: _Opened
    step: int
    time: float
    values: dict[str, Histogram]


class _Happening(NamedTuple):
    segment: _Opened
    step: int
    time: float
    kind: str
    message: str
    data: str


_Record = _Scalars | _Spreads | _Happening


class Follower(Protocol):
    """Gets what is recorded, as it is; must neither wait nor fail. Times are seconds since 1970."""

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None: ...

    def histograms(self, step: int, moment: float, values: Mapping[str, Histogram]) -> None: ...

    def event(self, step: int, moment: float, kind: str, message: str) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """Writes the metrics of one process. No fault of the disk or the file ever reaches the caller.

    Calls only put records into a queue; a thread commits them every second. What cannot be written (disk full, file locked,
    read-only or corrupted) is dropped after one warning on stderr and counted in `dropped`; every later commit tries anew,
    and the first that succeeds leaves an event of kind ``dropped`` that says how many records are missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.dropped = 0
        """Values, histograms and events that could not be stored, so far."""
        self.follower: Follower | None = None
        self._dropped_untold = 0
        self._warned = False
        self._pending: deque[_Record] = deque()
        self._segment: _Opened | None = None
        self._connection: sqlite3.Connection | None = None
        self._name_ids: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._commit()
        self._thread = threading.Thread(target=self._commit_regularly, name="danlu-recorder", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path | str) -> Recorder:
        """Open or create the metrics file at `path`; what it already holds is kept."""
        return cls(path)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_segment(self, step: int, info: Mapping[str, Any]) -> int:
        """Open a segment whose first recorded step will be `step`, and return its number.

        From `step` on, readers see this segment instead of older ones. The number is 0 when the file cannot be written now;
        the segment is then stored as soon as it can be.
        """
        self._segment = _Opened(time.time(), step, _json(info))
        self._commit()
        return self._segment.id or 0

    def attach(self) -> None:
        """Record into the newest segment of the file, as a second process beside the run; where there is none, open one."""
        with suppress(sqlite3.Error), self._lock:
            connection = self._connection or self._connect()
            (newest,) = connection.execute("SELECT max(id) FROM segments").fetchone()
            self._segment = _Opened(time.time(), 0, _json({}), guest=newest is not None)
            return
        self._segment = _Opened(time.time(), 0, _json({}), guest=True)  # the file may be there later

    def scalars(self, step: int, values: Mapping[str, float], moment: float | None = None) -> None:
        """Record the values of named signals at `step`. NaN and infinities are kept; a signal that is missing is left out.

        `moment` is when that was, in seconds since 1970; now if it is not given.
        """
        record = _Scalars(self._current(), step, moment or time.time(), {name: float(value) for name, value in values.items()})
        self._pending.append(record)
        if self.follower is not None:
            self.follower.scalars(step, record.time, record.values)

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Record histograms by name at `step`."""
        record = _Spreads(self._current(), step, time.time(), dict(values))
        self._pending.append(record)
        if self.follower is not None:
            self.follower.histograms(step, record.time, record.values)

    def event(self, step: int, kind: str, message: str, **data: Any) -> None:
        """Record something that happened at `step`; `data` is stored as JSON, what JSON cannot hold as its text."""
        printable = message.encode("utf-8", "replace").decode("utf-8")
        record = _Happening(self._current(), step, time.time(), kind, printable, _json(data))
        self._pending.append(record)
        if self.follower is not None:
            self.follower.event(step, record.time, kind, printable)

    def flush(self) -> None:
        """Return once everything recorded so far is in the file, or is dropped and counted."""
        self._commit()

    def close(self) -> None:
        """Flush and let go of the file. Closing twice is harmless."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._commit()
        self._segment = None
        with self._lock:
            self._disconnect()
        if self.follower is not None:
            self.follower.close()

    def _current(self) -> _Opened:
        if self._segment is None:
            raise RuntimeError("no open segment: call start_segment first")
        return self._segment

    def _commit_regularly(self) -> None:
        while not self._closing.wait(COMMIT_SECONDS):
            self._commit()

    def _commit(self) -> None:
        with self._lock:
            records = [self._pending.popleft() for _ in range(len(self._pending))]
            try:
                self._write(records)
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                self._disconnect()
                self._drop(records, error)
            except BaseException:  # Ctrl-C: nothing of the transaction stays, and the records wait for the next one
                self._disconnect()
                self._pending.extendleft(reversed(records))
                raise

    def _write(self, records: Sequence[_Record]) -> None:
        """Store the records and a sign of life in one transaction; what memory knows of the file changes once it is through."""
        connection = self._connection or self._connect()
        segments = dict.fromkeys([record.segment for record in records] + ([self._segment] if self._segment else []))
        if not records and all(segment.guest for segment in segments):
            return
        now = time.time()
        connection.execute("BEGIN IMMEDIATE")
        segment_ids = {segment: _store_segment(connection, segment, now) for segment in segments}
        name_ids = dict(self._name_ids)
        scalars = [record for record in records if isinstance(record, _Scalars)]
        spreads = [record for record in records if isinstance(record, _Spreads)]
        named: list[_Scalars | _Spreads] = [*scalars, *spreads]
        for name in {name for record in named for name in record.values} - name_ids.keys():
            connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            (name_ids[name],) = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        connection.executemany(
            'INSERT OR REPLACE INTO "values" (name, segment, step, value) VALUES (?, ?, ?, ?)',
            ((name_ids[name], segment_ids[r.segment], r.step, value) for r in scalars for name, value in r.values.items()),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO histograms (name, segment, step, exponent, counts, not_finite) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (name_ids[name], segment_ids[r.segment], r.step, found.exponent, packed(found.counts), found.not_finite)
                for r in spreads
                for name, found in r.values.items()
            ),
        )
        connection.executemany(
            "INSERT OR IGNORE INTO steps (segment, step, time) VALUES (?, ?, ?)",
            ((segment_ids[r.segment], r.step, r.time) for r in scalars),
        )
        happenings = [record for record in records if isinstance(record, _Happening)]
        if self._dropped_untold:
            happenings.append(self._missing(next(reversed(segments)), records, now))
        connection.executemany(
            "INSERT INTO events (segment, step, time, kind, message, data) VALUES (?, ?, ?, ?, ?, ?)",
            ((segment_ids[r.segment], *r[1:]) for r in happenings),
        )
        connection.execute("COMMIT")
        for segment, number in segment_ids.items():
            segment.id = number
        self._name_ids = name_ids
        self._dropped_untold = 0

    def _missing(self, segment: _Opened, records: Sequence[_Record], now: float) -> _Happening:
        step = records[-1].step if records else segment.first_step
        count = self._dropped_untold
        return _Happening(segment, step, now, "dropped", f"records that could not be stored: {count}", _json({"records": count}))

    def _connect(self) -> sqlite3.Connection:
        # One lock guards every use, so the connection may move between the threads.
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            check_format(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL survives the death of the process; only a power cut can take the last commits, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _disconnect(self) -> None:
        """Close the connection; a transaction under way is rolled back."""
        connection, self._connection, self._name_ids = self._connection, None, {}
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _drop(self, records: Sequence[_Record], error: Exception) -> None:
        lost = sum(1 if isinstance(record, _Happening) else len(record.values) for record in records)
        self.dropped += lost
        self._dropped_untold += lost
        if self._warned:
            return
        self._warned = True
        with suppress(OSError, ValueError):
            print(
                f"danlu: metrics cannot be stored in {self.path} ({error}); the run goes on without them, "
                "and every second it is tried again",
                file=sys.stderr,
                flush=True,
            )


def _store_segment(connection: sqlite3.Connection, segment: _Opened, now: float) -> int:
    """Insert the segment, or renew its sign of life; a known number is kept even when the file was replaced meanwhile."""
    if segment.guest:
        (newest,) = connection.execute("SELECT max(id) FROM segments").fetchone()
        if newest is not None:
            return int(newest)
    row = connection.execute(
        "INSERT INTO segments (id, started, seen, first_step, info) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen RETURNING id",
        (segment.id, segment.started, now, segment.first_step, segment.info),
    ).fetchone()
    return int(row[0])


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(dict(data), default=str)
