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

# One statement with one row: between rows, Python would have to wait for its other threads. With one min or max, SQLite takes the
# other columns from the row that has it.
_COLUMN = """(
    SELECT json_array(step, {end}(value), count(*), count(value), avg(value)) FROM "values"
    WHERE name = :name AND segment = :segment AND step >= :low + i * :width AND step < :low + (i + 1) * :width AND step <= :high
)"""
_COLUMNS = f"""
WITH RECURSIVE column(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM column WHERE i < :columns - 1)
SELECT json_group_array(json_array(json({_COLUMN.format(end="min")}), json({_COLUMN.format(end="max")}))) FROM column
"""


def length(path: Path, name: str) -> int:
    """How many steps lie between the first and the last value of a signal: no fewer than it has values."""
    with store.reading(path) as connection:
        found = [_ends(connection, name, part) for part in parts(store.segments(path))]
    ends = [end for pair in found if pair is not None for end in pair]
    return max(ends) - min(ends) + 1 if ends else 0


class Coarse:
    """`steps` and `values` of the extremes of columns of equal width; `middles` and `means` of the columns; how many values."""

    def __init__(self, path: Path, name: str, points: int) -> None:
        """About `points` extremes of the whole signal."""
        extremes: dict[int, float] = {}
        middles, means = [], []
        self.points = self.not_finite = 0
        with store.reading(path) as connection:
            counting = [part for part in parts(store.segments(path)) if _ends(connection, name, part) is not None]
            for part in counting:
                low, high = _ends(connection, name, part) or (0, 0)
                columns = max(1, points // 2 // len(counting))
                width = -(-(high - low + 1) // columns)
                given = {"segment": part[0], "low": low, "high": high, "width": width, "columns": columns}
                (number,) = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
                (text,) = connection.execute(_COLUMNS, {"name": number, **given}).fetchone()
                for at, pair in enumerate(json.loads(text)):
                    for step, value, _, _, _ in pair:
                        if value is not None and math.isfinite(value):
                            extremes[step] = value
                    _, _, count, known, mean = pair[0]
                    self.points += count
                    self.not_finite += count - known
                    middles.append(low + (at + 0.5) * width)
                    means.append(math.nan if mean is None else mean)
        self.steps = np.array(sorted(extremes), dtype=np.int64)
        self.values = np.array([extremes[step] for step in sorted(extremes)], dtype=np.float64)
        self.middles, self.means = np.array(middles), np.array(means)


def _ends(connection: sqlite3.Connection, name: str, part: tuple[int, int, int]) -> tuple[int, int] | None:
    """First and last step of a signal in what counts of a segment."""
    query = 'SELECT {}(step) FROM "values" WHERE name = (SELECT id FROM names WHERE name = ?) AND segment = ? AND step < ?'
    segment, _, end = part
    # By the index only one at a time.
    low, high = (connection.execute(query.format(which), (name, segment, end)).fetchone()[0] for which in ("min", "max"))
    return None if low is None else (int(low), int(high))
