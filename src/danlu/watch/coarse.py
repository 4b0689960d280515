"""A long signal at first sight: SQLite itself finds the extremes of every column, which is faster than reading all of it."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import numpy as np

from danlu.watch import store
from danlu.watch.ends import parts

LONG = 100_000
"""Values beyond which a signal is long."""

# One statement with one row: between rows, Python would have to wait for its other threads. Every value is read once.
_COLUMNS = """
WITH RECURSIVE column(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM column WHERE i < :columns - 1)
SELECT json_group_array(json((
    SELECT json_array(min(value), max(value), count(*), count(value), avg(value)) FROM "values"
    WHERE name = :name AND segment = :segment AND step >= :low + i * :width AND step < :low + (i + 1) * :width AND step <= :high
))) FROM column
"""


def length(path: Path, name: str) -> int:
    """How many steps lie between the first and the last value of a signal: no fewer than it has values."""
    with store.reading(path) as connection:
        found = [_ends(connection, name, part) for part in parts(store.segments(path))]
    ends = [end for pair in found if pair is not None for end in pair]
    return max(ends) - min(ends) + 1 if ends else 0


class Coarse:
    """Columns of equal width: `steps` and `values` of their extremes, `middles` and `means`; how many values there are in all.

    The smallest value of a column stands at its first step and the largest at its last: no screen shows where they were in it.
    """

    def __init__(self, path: Path, name: str, points: int) -> None:
        """About `points` extremes of the whole signal."""
        steps, values, middles, means = [], [], [], []
        self.points = self.not_finite = 0
        with store.reading(path) as connection:
            ends = {part: _ends(connection, name, part) for part in parts(store.segments(path))}
            counting = {part[0]: pair for part, pair in ends.items() if pair is not None}
            for segment, (low, high) in counting.items():
                columns = max(1, points // 2 // len(counting))
                width = -(-(high - low + 1) // columns)
                given = {"segment": segment, "low": low, "high": high, "width": width, "columns": columns}
                (number,) = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
                (text,) = connection.execute(_COLUMNS, {"name": number, **given}).fetchone()
                for at, (least, most, count, known, mean) in enumerate(json.loads(text)):
                    begin = low + at * width
                    for step, value in ((begin, least), (min(begin + width - 1, high), most)):
                        if value is not None and math.isfinite(value):
                            steps.append(step)
                            values.append(value)
                    self.points += count
                    self.not_finite += count - known
                    middles.append(begin + 0.5 * width)
                    means.append(math.nan if mean is None else mean)
        self.steps, self.values = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
        self.middles, self.means = np.array(middles), np.array(means)


def _ends(connection: sqlite3.Connection, name: str, part: tuple[int, int, int]) -> tuple[int, int] | None:
    """First and last step of a signal in what counts of a segment."""
    query = 'SELECT {}(step) FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?'
    segment, _, end = part
    # By the index only one at a time.
    low, high = (connection.execute(query.format(which), (name, segment, end)).fetchone()[0] for which in ("min", "max"))
    return None if low is None else (int(low), int(high))
