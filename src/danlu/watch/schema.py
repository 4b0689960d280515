"""The metrics file of a run, and what its tables hold. `recorder` writes it, `store` reads it, `names` lists the signals.

A segment is one start or resume of the run. Nothing is ever overwritten: when a resume goes back to an earlier step, its segment
wins from its first step on, and what it replaces stays in the file.

    segments    one start or resume: when, the recorder's last sign of life, the first step, and facts as JSON
    names       a number for every name; a name may have values, histograms or both
    values      one number of a signal at a step. NULL is a NaN, which SQLite cannot hold; what is missing has no row
    histograms  64 counts of a tensor's entries, or of lengths, at a step; see `histogram` for the bins
    steps       the wall clock of each step, so that curves can be drawn over time
    events      something that happened, with a message for people and data for programs

A name is ``group/name``. What each process measures for itself is ``group/name@rank``; without @ a value is of the whole run, or
of rank 0 where ranks do the same. One process writes, rank 0: the others' values come to it with the training's communication,
not through files, since SQLite's write-ahead log works on one machine only (https://www.sqlite.org/wal.html), and a run may have
many.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any, NamedTuple

import numpy as np

from danlu.watch.histogram import BINS, Counts

BUSY_SECONDS = 2.0
"""How long a commit waits for another process's lock before it gives up and drops its records."""
FORMAT = 1

# A series is one contiguous range of the values' primary key. `seen` is the writer's heartbeat, so that a reader can tell a slow
# run from a dead one.
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS segments (
    id INTEGER PRIMARY KEY, started REAL NOT NULL, seen REAL NOT NULL, first_step INTEGER NOT NULL, info TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS "values" (
    name INTEGER NOT NULL, segment INTEGER NOT NULL, step INTEGER NOT NULL, value REAL, PRIMARY KEY (name, segment, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS histograms (
    name INTEGER NOT NULL, segment INTEGER NOT NULL, step INTEGER NOT NULL,
    exponent INTEGER NOT NULL, counts BLOB NOT NULL, not_finite INTEGER NOT NULL, PRIMARY KEY (name, segment, step)
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


def check_format(connection: sqlite3.Connection) -> None:
    """sqlite3.NotSupportedError: a later danlu wrote the file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise sqlite3.NotSupportedError(f"metrics format {version} is newer than this danlu, which knows {FORMAT}")


def packed(counts: Counts) -> bytes:
    """64 counts as a blob: most are 0, so that they take about a quarter."""
    return zlib.compress(np.ascontiguousarray(counts, dtype="<i8").tobytes(), 1)


def unpacked(blob: bytes) -> Counts:
    """The reverse of `packed`. sqlite3.DatabaseError: it is damaged."""
    try:
        counts = np.frombuffer(zlib.decompress(blob), dtype="<i8")
    except (zlib.error, ValueError) as error:
        raise sqlite3.DatabaseError(f"a damaged histogram: {error}") from None
    if len(counts) != BINS:
        raise sqlite3.DatabaseError(f"a histogram of {len(counts)} bins instead of {BINS}")
    return counts.astype(np.int64)
