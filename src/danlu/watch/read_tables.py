"""Tables of metrics that other programs wrote: Parquet and CSV, long or with a column a signal."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from danlu.errors import UserError
from danlu.watch.store import Series

STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter")


def read_parquet(path: Path) -> dict[str, Series]:
    """Signals of a long table with the columns step, metric and value."""
    try:
        import pyarrow as arrow
        import pyarrow.compute as compute
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path}: Parquet needs pyarrow; install danlu with its extra `data`") from None
    try:
        table = parquet.read_table(path)
    except arrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}") from None
    if missing := {"step", "metric", "value"} - set(table.column_names):
        raise UserError(f"{path}: has no column {', '.join(sorted(missing))}; it must be a table of step, metric, value")
    metric = compute.dictionary_encode(table["metric"].combine_chunks()).cast(arrow.dictionary(arrow.int32(), arrow.string()))
    labels = metric.dictionary.to_pylist()
    codes = metric.indices.to_numpy(zero_copy_only=False)
    steps, values = table["step"].to_numpy(), table["value"].to_numpy()
    if not (np.issubdtype(steps.dtype, np.integer) and np.issubdtype(values.dtype, np.floating)):
        raise UserError(
            f"{path}: step must hold integers and value numbers; they hold {table['step'].type} and {table['value'].type}"
        )
    return {label: series(steps[codes == code], values[codes == code]) for code, label in enumerate(labels)}


def read_csv(path: Path) -> dict[str, Series]:
    """Signals of a CSV: long with step, metric, value, or wide with a column a signal. Empty cells are missing, not zero."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            columns = list(rows.fieldnames or [])
            if not columns:
                raise UserError(f"{path}: is empty; a log begins with a line of column names, such as step,loss")
            step = next((column for column in columns if column.strip().lower() in STEP_COLUMNS), None)
            if step is None:
                found = ", ".join(columns)[:60]
                raise UserError(
                    f"{path}: has no column for the step; call one of them step, with commas between them, not {found!r}"
                )
            if twice := next((column for column in columns if column and columns.count(column) > 1), None):
                raise UserError(f"{path}: has two columns {twice!r}; give them names of their own")
            if {"metric", "value"} <= set(columns):
                return _collect((row[step], row["metric"], row["value"], line) for line, row in enumerate(rows, 2))
            others = [column for column in columns if column and column != step]
            return _collect(
                ((row[step], column, row[column], line) for line, row in enumerate(rows, 2) for column in others), strict=False
            )
    except UserError as error:
        raise UserError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from None


def _collect(cells: Iterable[tuple[Any, Any, Any, int]], strict: bool = True) -> dict[str, Series]:
    """Series from (step, name, value, line). A column of a wide table that holds text is no signal."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    texts: set[str] = set()
    for step, name, value, line in cells:
        if value is None or not value.strip() or name is None:
            continue
        try:
            at = int(float(step))
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"line {line}: the step is {step!r}, not a number") from None
        try:
            number = float(value)
        except ValueError:
            if strict:
                raise UserError(f"line {line}: the value of {name} is {value!r}, not a number") from None
            texts.add(name)
            continue
        steps.setdefault(name, []).append(at)
        values.setdefault(name, []).append(number)
    return {name: series(steps[name], values[name]) for name in steps if name not in texts}


def series(steps: npt.ArrayLike, values: npt.ArrayLike) -> Series:
    """Sorted by step, and of equal steps the last that was logged."""
    steps_array = np.asarray(steps, dtype=np.int64)
    values_array = np.asarray(values, dtype=np.float64)
    rising, last = np.unique(steps_array[::-1], return_index=True)
    return rising, values_array[::-1][last]
