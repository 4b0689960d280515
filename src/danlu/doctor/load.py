"""Evidence from a run folder, from a long table (step, metric, value) in Parquet or CSV, or from a CSV with a column a signal."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.series import Series, series
from danlu.errors import UserError
from danlu.files import why
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.watch import store

DEVICE, DEVICE_OF = "train.device", "run.device"
"""The recipe may say auto; the segment says what it became."""
STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter")

# Where a log has a step loss under its own name, train/loss is what evaluations on training data are called.
ALIASES = {
    names.LOSS: ("train_loss", "loss", "training_loss", "lm_loss", "lm loss"),
    names.EVALUATED: ("train_eval_loss", "train/loss", "train/ctc_loss"),
    names.VALIDATION: ("val_loss", "validation_loss", "valid_loss", "eval_loss", "eval/loss", "val/loss", "validation/ctc_loss"),
    names.GRADIENT: ("grad_norm", "gradient_norm", "train/grad_norm", "grad-norm"),
    names.RATE: ("learning_rate", "lr", "train/learning_rate", "train/lr"),
    names.SCALE: ("loss_scale", "train/loss_scale"),
    names.SPEED: ("tokens_per_second", "tokens_per_s", "tokens_per_sec"),
    names.STEP: ("step_time_s", "step_time", "time_per_step"),
    names.DATA_WAIT: ("data_wait", "data_wait_s", "data_time"),
    "memory/device_bytes": ("device_bytes", "max_memory_bytes"),
}

FACTS = {
    "train.optimizer.learning_rate": ("learning_rate", "lr", "base_lr"),
    "train.optimizer.gradient_clipping": ("gradient_clipping", "grad_clip", "grad_clip_norm"),
    "train.optimizer.weight_decay": ("weight_decay", "wd"),
    "train.schedule.warmup_steps": ("warmup_steps",),
    "train.schedule.warmup_fraction": ("warmup_fraction", "warmup_steps_fraction"),
    "train.steps": ("steps", "planned_steps", "max_steps", "iterations"),
    "train.precision": ("precision",),
    "train.global_batch": ("global_batch", "global_batch_size"),
}


def load(path: Path, facts: Mapping[str, Any] | None = None) -> Evidence:
    """Evidence from a run folder or a file. UserError: it is neither, or it cannot be read.

    `facts` are settings the file does not hold, by recipe field or by a usual name of theirs.
    """
    if path.is_dir():
        return from_run(RunFolder.open(path))
    if not path.exists():
        raise UserError(f"{path}: there is no such run folder or file")
    if path.suffix == ".sqlite":
        return from_store(path, renamed_facts(facts or {}))
    read = {".parquet": read_parquet, ".csv": read_csv}.get(path.suffix.lower())
    if read is None:
        raise UserError(f"{path}: neither a run folder nor a .parquet or .csv file with metrics")
    try:
        signals = read(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {why(error)}") from None
    if not signals:
        raise UserError(f"{path}: holds no metrics")
    return Evidence(renamed(signals), renamed_facts(facts or {}), name=path.name)


def from_run(run: RunFolder) -> Evidence:
    """Evidence of danlu's own run; its recipe tells the settings and that all steps do the same work."""
    recipe = run.load_recipe()
    return from_store(run.metrics, facts_of(recipe, {}), name=recipe.name)


def facts_of(recipe: Recipe, information: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by recipe field, and what a segment tells of the run beside them as `run.NAME`."""
    facts = flat(recipe.model_dump(mode="json"))
    facts["train.schedule.warmup_steps"] = recipe.warmup_steps
    return facts | _told(information)


def _told(information: Mapping[str, Any]) -> dict[str, Any]:
    facts = {f"run.{name}": value for name, value in information.items() if value is not None}
    if DEVICE_OF in facts:
        facts[DEVICE] = facts.pop(DEVICE_OF)
    return facts


def from_store(path: Path, facts: Mapping[str, Any], name: str = "") -> Evidence:
    """Evidence from a metrics.sqlite."""
    signals = {name: series(*store.series(path, name)) for name in store.names(path)}
    segments = store.segments(path)
    resumes = [segment.first_step for segment in segments][1:]
    facts = {**facts, **(_told(segments[-1].info) if segments else {})}
    found = {signal: one for signal, one in signals.items() if len(one)}
    return Evidence(found, facts, resumes, own=True, name=name or path.name)


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
            step = next((column for column in columns if column.strip().lower() in STEP_COLUMNS), None)
            if step is None:
                raise UserError(f"{path}: has no column for the step; call one of them step")
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


def renamed(signals: Mapping[str, Series]) -> dict[str, Series]:
    """Signals under danlu's names where they are known under another; the others keep theirs."""
    result: dict[str, Series] = {}
    used: set[str] = set()
    for name, aliases in ALIASES.items():
        alias = next((alias for alias in (*aliases, name) if alias in signals and alias not in used), None)
        if alias is not None:
            used.add(alias)
            result[name] = signals[alias]
    return {**{name: one for name, one in signals.items() if name not in used}, **result}


def renamed_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their recipe fields; those that no rule knows keep their names."""
    result = dict(facts)
    for name, aliases in FACTS.items():
        value = next((facts[alias] for alias in (name, *aliases) if alias in facts), None)
        if value is not None:
            result[name] = value
    return result


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings under dotted names; a setting of null is not known."""
    result: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{above}{name}."))
        elif value is not None:
            result[above + name] = value
    return result


def read_facts(text: str) -> dict[str, Any]:
    """Settings from a JSON object; what is no object holds none."""
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
