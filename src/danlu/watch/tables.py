"""A run's values as tables for other programs: long, with a step, a metric and a value in each row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from danlu.errors import UserError
from danlu.watch import store

COLUMNS = ("step", "metric", "value")


class Signal(NamedTuple):
    """One signal of a run as readers see it: of replaced steps the newest."""

    name: str
    series: store.Series


def metrics_file(place: Path) -> Path:
    """The metrics of a run folder, or the file itself. UserError: there is none."""
    file = place / "metrics.sqlite" if place.is_dir() else place
    if not file.is_file():
        raise UserError(f"{place}: holds no metrics.sqlite; give the folder of a run that has started training")
    return file


def signals(metrics: Path, patterns: Sequence[str] = ()) -> Iterator[Signal]:
    """The signals whose names match one of the patterns (with * and ?), or all. UserError: a pattern matches none."""
    names = store.names(metrics)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            groups = sorted({name.split("/")[0] for name in names})
            raise UserError(f"no metric is called {pattern!r}; those of this run are in {', '.join(groups) or 'no group at all'}")
    chosen = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    return (Signal(name, store.series(metrics, name)) for name in chosen)


def write_csv(found: Iterable[Signal], stream: TextIO) -> None:
    """Values in as many digits as they need to be read back exactly; nan, inf and -inf as such."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, (steps, values) in found:
        writer.writerows((step, name, value) for step, value in zip(steps.tolist(), values.tolist(), strict=True))


def write_parquet(found: Iterable[Signal], file: Path) -> None:
    """UserError: pyarrow is not installed. OSError: the file cannot be written."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError("--parquet needs pyarrow; install danlu with its extra `data`, or use --csv") from None
    schema = arrow.schema(
        [("step", arrow.int64()), ("metric", arrow.dictionary(arrow.int32(), arrow.string())), ("value", arrow.float64())]
    )
    with parquet.ParquetWriter(file, schema) as writer:
        for name, (steps, values) in found:
            metric = arrow.DictionaryArray.from_arrays(np.zeros(len(steps), dtype=np.int32), [name])
            writer.write_table(arrow.table([steps, metric, values], schema=schema))


def as_json(found: Iterable[Signal]) -> dict[str, dict[str, list[Any]]]:
    """Metric -> steps and values; what is not finite, which JSON lacks, as the text that ``float`` takes."""
    return {
        name: {"steps": steps.tolist(), "values": [value if np.isfinite(value) else str(value) for value in values.tolist()]}
        for name, (steps, values) in found
    }


def summary_lines(found: Iterable[Signal]) -> list[str]:
    """One line a signal: how many points, and first, last, smallest and largest value."""
    rows: list[tuple[str, ...]] = [("metric", "points", "first", "last", "least", "most")]
    for name, (_, values) in found:
        finite = values[np.isfinite(values)]
        least, most = (finite.min(), finite.max()) if finite.size else (np.nan, np.nan)
        rows.append((name, str(len(values)), *(f"{value:.6g}" for value in (values[0], values[-1], least, most))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(widths[0]) if not at else cell.rjust(widths[at]) for at, cell in enumerate(row)) for row in rows]
