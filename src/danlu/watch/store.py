"""The metrics of a run in one SQLite file: every value, event and segment, safe against crashes, readable while the run is live.

A segment is one start or resume of the run. Nothing is ever overwritten: when a resume goes back to an earlier step, its
segment wins from its first step on, and what it replaces stays in the file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from danlu.errors import UserError

COMMIT_SECONDS = 1.0
"""Time between commits; with one commit in flight, a crash loses at most twice this."""
BUSY_SECONDS = 2.0
"""How long a commit waits for another process's lock before it gives up and drops its records."""
FORMAT = 1

# A series is one contiguous range of the values' primary key. A value of NULL is a NaN, which SQLite cannot hold; a signal that
# is missing has no row. `steps` keeps the wall clock, so that curves can be drawn over time; `seen` is the writer's heartbeat,
# so that a reader can tell a slow run from a dead one.
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS segments (
    id INTEGER PRIMARY KEY, started REAL NOT NULL, seen REAL NOT NULL, first_step INTEGER NOT NULL, info TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS "values" (
    name INTEGER NOT NULL, segment INTEGER NOT NULL, step INTEGER NOT NULL, value REAL, PRIMARY KEY (name, segment, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    segment INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (segment, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
    kind TEXT NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL
);
PRAGMA user_version = {FORMAT};
"""

Series = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class Segment(NamedTuple):
    """One start or resume of a run. Times are seconds since 1970."""

    id: int
    started: float
    seen: float
    """When the recorder was last alive: it says so every second, with or without a step."""
    first_step: int
    info: dict[str, Any]


class Event(NamedTuple):
    """Something that happened at a step. The time is seconds since 1970."""

    segment: int
    step: int
    time: float
    kind: str
    message: str
    data: dict[str, Any]


# --- writing -----------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Opened:
    """A segment of this process; `id` is None until the file holds it."""

    started: float
    first_step: int
    info: str
    id: int | None = None


class _Scalars(NamedTuple):
    segment: _Opened
    step: int
    time: float
    values: dict[str, float]


class _Happening(NamedTuple):
    segment: _Opened
    step: int
    time: float
    kind: str
    message: str
    data: str


_Record = _Scalars | _Happening


class Recorder:
    """Writes the metrics of one process. No fault of the disk or the file ever reaches the caller.

    Calls only put records into a queue; a thread commits them every second. What cannot be written (disk full, file locked,
    read-only or corrupted) is dropped after one warning on stderr and counted in `dropped`; every later commit tries anew,
    and the first that succeeds leaves an event of kind ``dropped`` that says how many records are missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.dropped = 0
        """Values and events that could not be stored, so far."""
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

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of named signals at `step`. NaN and infinities are kept; a signal that is missing is left out."""
        self._pending.append(_Scalars(self._current(), step, time.time(), {name: float(value) for name, value in values.items()}))

    def event(self, step: int, kind: str, message: str, **data: Any) -> None:
        """Record something that happened at `step`; `data` is stored as JSON, what JSON cannot hold as its text."""
        printable = message.encode("utf-8", "replace").decode("utf-8")
        self._pending.append(_Happening(self._current(), step, time.time(), kind, printable, _json(data)))

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
        if not segments:
            return
        now = time.time()
        connection.execute("BEGIN IMMEDIATE")
        segment_ids = {segment: _store_segment(connection, segment, now) for segment in segments}
        name_ids = dict(self._name_ids)
        scalars = [record for record in records if isinstance(record, _Scalars)]
        for name in {name for record in scalars for name in record.values} - name_ids.keys():
            connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            (name_ids[name],) = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        connection.executemany(
            'INSERT OR REPLACE INTO "values" (name, segment, step, value) VALUES (?, ?, ?, ?)',
            ((name_ids[name], segment_ids[r.segment], r.step, value) for r in scalars for name, value in r.values.items()),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO steps (segment, step, time) VALUES (?, ?, ?)",
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
            _check_format(connection)
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
        lost = sum(len(record.values) if isinstance(record, _Scalars) else 1 for record in records)
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
    row = connection.execute(
        "INSERT INTO segments (id, started, seen, first_step, info) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen RETURNING id",
        (segment.id, segment.started, now, segment.first_step, segment.info),
    ).fetchone()
    return int(row[0])


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(dict(data), default=str)


# --- reading -----------------------------------------------------------------------------------------------------------------


def names(path: Path | str) -> list[str]:
    """The names of all recorded signals, sorted."""
    with reading(path) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM names ORDER BY name")]


def segments(path: Path | str) -> list[Segment]:
    """The starts and resumes of the run, oldest first."""
    with reading(path) as connection:
        return _segments(connection)


def events(path: Path | str) -> list[Event]:
    """All events, those of replaced steps included, in the order in which they happened."""
    with reading(path) as connection:
        rows = connection.execute("SELECT segment, step, time, kind, message, data FROM events ORDER BY id")
        return [
            Event(segment, step, moment, kind, message, json.loads(data)) for segment, step, moment, kind, message, data in rows
        ]


def series(path: Path | str, name: str) -> Series:
    """One signal as (steps, values), steps rising; the latest segment wins from its first step on. Empty for an unknown name."""
    query = 'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?'
    with reading(path) as connection:
        return _merged(connection, query, (name,))


def times(path: Path | str) -> Series:
    """The wall clock as (steps, seconds since 1970), merged as `series` is."""
    with reading(path) as connection:
        return _merged(connection, "SELECT step, time FROM steps WHERE segment = ? AND step < ?", ())


def _segments(connection: sqlite3.Connection) -> list[Segment]:
    rows = connection.execute("SELECT id, started, seen, first_step, info FROM segments ORDER BY id")
    return [Segment(number, started, seen, first_step, json.loads(info)) for number, started, seen, first_step, info in rows]


def _merged(connection: sqlite3.Connection, query: str, arguments: tuple[str, ...]) -> Series:
    parts: list[npt.NDArray[np.float64]] = []
    end = 2**63 - 1
    for segment in reversed(_segments(connection)):
        rows = connection.execute(query, (*arguments, segment.id, end)).fetchall()
        parts.append(np.array(rows, dtype=np.float64).reshape(-1, 2))  # a NULL becomes NaN
        end = min(end, segment.first_step)
    merged = np.concatenate(parts) if parts else np.empty((0, 2))
    # A segment may hold steps before its own first one (a validation ahead of training); np.unique keeps the newest of equals.
    steps, first = np.unique(merged[:, 0].astype(np.int64), return_index=True)
    return steps, merged[first, 1]


@contextmanager
def reading(path: Path | str) -> Iterator[sqlite3.Connection]:
    """A connection that changes no record; in WAL mode it neither blocks the writer nor waits for it."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such metrics file; it appears once the run has started training")
    connection: sqlite3.Connection | None = None
    try:
        connection = _open_for_reading(path)
        _check_format(connection)
        yield connection
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as metrics ({error}); is it complete, and written by danlu?") from error
    finally:
        if connection is not None:
            connection.close()


def _open_for_reading(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    # With mode=ro the last one to close would leave the files of the write-ahead log behind. Where the file is write-protected,
    # mode=rw opens it read-only all the same.
    connection = sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    connection.execute("PRAGMA query_only = ON")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        # SQLite cannot put its index of the write-ahead log into a folder that is read-only. Without a log it needs none.
        log = Path(f"{path}-wal")
        if os.access(path.parent, os.W_OK) or (log.exists() and log.stat().st_size):
            raise
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    return connection


def _check_format(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise sqlite3.NotSupportedError(f"metrics format {version} is newer than this danlu, which knows {FORMAT}")
