"""The ends of a signal and some of the clock, found by the index: nothing that lies between is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from danlu.watch import store

_CLOCK = """
WITH found(step) AS (
    SELECT (SELECT min(step) FROM steps WHERE segment = :segment AND step >= value AND step <= :last) FROM json_each(:wanted)
)
SELECT step, (SELECT time FROM steps WHERE segment = :segment AND steps.step = found.step) FROM found
"""
"""The first step from each wanted one on, and its time."""
Part = tuple[int, int, int]
"""A segment, and the steps from which and below which it is the one that counts."""


def mark(path: Path) -> tuple[Any, ...]:
    """What changes when a metrics file does, without opening it.

    An empty write-ahead log tells nothing: whoever reads makes one, and takes it away again.
    """
    marks: list[Any] = []
    for name in (path, Path(f"{path}-wal")):
        try:
            found = name.stat()
        except OSError:
            continue
        if found.st_size:
            marks += [found.st_ino, found.st_mtime_ns, found.st_size]
    return tuple(marks)


def parts(segments: list[store.Segment]) -> list[Part]:
    """What counts of every segment, oldest first; one that a later one has replaced as a whole is left out.

    A segment may hold values before its own first step, such as a validation ahead of training: they count unless they are
    replaced, so that only the upper end limits what is read of a signal.
    """
    found: list[Part] = []
    end = 2**63 - 1
    for segment in reversed(segments):
        if segment.first_step < end:
            found.append((segment.id, segment.first_step, end))
            end = segment.first_step
    return found[::-1]


def newest(path: Path, name: str, count: int = 1) -> store.Series:
    """The last values of a signal, steps rising."""
    query = (
        'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ? '
        "ORDER BY step DESC LIMIT ?"
    )
    rows: list[tuple[int, float | None]] = []
    with store.reading(path) as connection:
        for segment, _, end in reversed(parts(store.segments(path))):
            if len(rows) >= count:
                break
            rows += connection.execute(query, (name, segment, end, count - len(rows))).fetchall()
    table = np.array(rows[::-1], dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]


def first(path: Path, name: str) -> float | None:
    """The first value of a signal; None where it has none."""
    query = (
        'SELECT step, value FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ? '
        "ORDER BY step LIMIT 1"
    )
    with store.reading(path) as connection:
        rows = [row for segment, _, end in parts(store.segments(path)) for row in connection.execute(query, (name, segment, end))]
    if not rows:
        return None
    value = min(rows, key=lambda row: row[0])[1]
    return float("nan") if value is None else float(value)


def clock(path: Path, points: int) -> store.Series:
    """About so many steps, spread evenly from the first to the last, and their times (seconds since 1970)."""
    found = parts(store.segments(path))
    with store.reading(path) as connection:
        spans = [span for span in _spans(connection, found) if span is not None]
        if not spans:
            return np.empty(0, dtype=np.int64), np.empty(0)
        total = sum(last - low + 1 for _, low, last in spans)
        rows: list[tuple[int, float]] = []
        for segment, low, last in spans:
            share = max(2, min(last - low + 1, round(points * (last - low + 1) / total)))
            wanted = np.unique(np.linspace(low, last, share).astype(np.int64)).tolist()
            rows += connection.execute(_CLOCK, {"segment": segment, "last": last, "wanted": json.dumps(wanted)}).fetchall()
    steps, which = np.unique(np.array([step for step, _ in rows], dtype=np.int64), return_index=True)
    return steps, np.array([moment for _, moment in rows])[which]


def _spans(connection: sqlite3.Connection, found: list[Part]) -> Iterator[Part | None]:
    for segment, low, end in found:
        query = "SELECT {}(step) FROM steps WHERE segment = ? AND step >= ? AND step < ?"
        # By the index only one at a time.
        least, most = (connection.execute(query.format(which), (segment, low, end)).fetchone()[0] for which in ("min", "max"))
        yield None if least is None else (segment, int(least), int(most))
