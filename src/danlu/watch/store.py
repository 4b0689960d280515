"""Reads the metrics of a run, live or finished: values, histograms, events and segments. `schema` says what is in the file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from danlu.errors import UserError
from danlu.watch.histogram import BINS, Counts
from danlu.watch.recorder import Recorder
from danlu.watch.schema import BUSY_SECONDS, Event, Segment, check_format, unpacked

__all__ = [
    "Event",
    "Histograms",
    "Recorder",
    "Segment",
    "Series",
    "events",
    "histogram_names",
    "histograms",
    "names",
    "segments",
    "series",
    "times",
]

Series = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class Histograms(NamedTuple):
    """Histograms of one name: steps (n), exponents (n), counts (n, 64), not_finite (n); see `histogram.Histogram`."""

    steps: npt.NDArray[np.int64]
    exponents: npt.NDArray[np.int64]
    counts: Counts
    not_finite: npt.NDArray[np.int64]


_VALUES = 'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?'
_HISTOGRAMS = (
    "SELECT step, exponent, counts, not_finite FROM histograms "
    "WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?"
)


def names(path: Path | str) -> list[str]:
    """The names of all signals that have values, sorted."""
    with reading(path) as connection:
        return _names(connection, "values")


def histogram_names(path: Path | str) -> list[str]:
    """The names of all that has histograms, sorted."""
    with reading(path) as connection:
        return _names(connection, "histograms") if _has_histograms(connection) else []


def segments(path: Path | str) -> list[Segment]:
    """The starts and resumes of the run, oldest first."""
    with reading(path) as connection:
        return _segments(connection)


def events(path: Path | str) -> list[Event]:
    """All events, those of replaced steps included, in the order in which they happened."""
    with reading(path) as connection:
        rows = connection.execute("SELECT segment, step, time, kind, message, data FROM events ORDER BY id")
        return [Event(segment, step, moment, kind, message, _told(data)) for segment, step, moment, kind, message, data in rows]


def series(path: Path | str, name: str) -> Series:
    """One signal as (steps, values), steps rising; the latest segment wins from its first step on. Empty for an unknown name."""
    with reading(path) as connection:
        return _merged(connection, _VALUES, (name,))


def histograms(path: Path | str, name: str) -> Histograms:
    """All histograms of one name, steps rising, merged as `series` is. Empty for an unknown name."""
    found: dict[int, tuple[Any, ...]] = {}
    with reading(path) as connection:
        for rows in _by_segment(connection, _HISTOGRAMS, (name,)) if _has_histograms(connection) else ():
            found = {row[0]: row for row in rows} | found
    rows = [found[step] for step in sorted(found)]
    return Histograms(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([unpacked(row[2]) for row in rows], dtype=np.int64).reshape(-1, BINS),
        np.array([row[3] for row in rows], dtype=np.int64),
    )


def times(path: Path | str) -> Series:
    """The wall clock as (steps, seconds since 1970), merged as `series` is."""
    with reading(path) as connection:
        return _merged(connection, "SELECT step, time FROM steps WHERE segment = ? AND step < ?", ())


def _segments(connection: sqlite3.Connection) -> list[Segment]:
    rows = connection.execute("SELECT id, started, seen, first_step, info FROM segments ORDER BY id")
    return [Segment(number, started, seen, first_step, _told(info)) for number, started, seen, first_step, info in rows]


def _told(text: str) -> dict[str, Any]:
    """A JSON object. sqlite3.DatabaseError: it is damaged."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"damaged facts: {error}") from None
    if not isinstance(told, dict):
        raise sqlite3.DatabaseError(f"damaged facts: {type(told).__name__} instead of an object")
    return told


def _names(connection: sqlite3.Connection, table: str) -> list[str]:
    found = connection.execute(f'SELECT name FROM names WHERE EXISTS (SELECT 1 FROM "{table}" t WHERE t.name = id) ORDER BY name')
    return [name for (name,) in found]


def _has_histograms(connection: sqlite3.Connection) -> bool:
    """A file that an earlier danlu wrote has no table for them."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'histograms'").fetchone() is not None


def _merged(connection: sqlite3.Connection, query: str, arguments: tuple[str, ...]) -> Series:
    parts = [np.array(rows, dtype=np.float64).reshape(-1, 2) for rows in _by_segment(connection, query, arguments)]  # NULL: NaN
    merged = np.concatenate(parts) if parts else np.empty((0, 2))
    # A segment may hold steps before its own first one (a validation ahead of training); np.unique keeps the newest of equals.
    steps, first = np.unique(merged[:, 0].astype(np.int64), return_index=True)
    return steps, merged[first, 1]


def _by_segment(connection: sqlite3.Connection, query: str, arguments: tuple[str, ...]) -> Iterator[list[tuple[Any, ...]]]:
    """What readers see of each segment, the newest first: its rows up to where a later one wins."""
    end = 2**63 - 1
    for segment in reversed(_segments(connection)):
        yield connection.execute(query, (*arguments, segment.id, end)).fetchall()
        end = min(end, segment.first_step)


@contextmanager
def reading(path: Path | str) -> Iterator[sqlite3.Connection]:
    """A connection that changes no record; in WAL mode it neither blocks the writer nor waits for it."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such metrics file; it appears once the run has started training")
    connection: sqlite3.Connection | None = None
    try:
        connection = _open_for_reading(path)
        check_format(connection)
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
