"""Logs of other programs, whatever they are: TensorBoard and VisualDL files, a Trainer's state, CSV and Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from danlu.errors import UserError
from danlu.files import why
from danlu.watch.formats import tensorboard, visualdl, wire
from danlu.watch.formats.log import Log, Setting, Spread
from danlu.watch.read_tables import read_csv, read_parquet, series
from danlu.watch.store import Series

# Where a log has a step loss under its own name, train/loss is what evaluations on training data are called.
ALIASES = {
    "train/loss": ("train_loss", "loss", "training_loss", "lm_loss", "lm loss"),
    "train/evaluated_loss": ("train_eval_loss", "train/loss", "train/ctc_loss"),
    "validation/loss": ("val_loss", "validation_loss", "valid_loss", "eval_loss", "eval/loss", "val/loss", "validation/ctc_loss"),
    "train/gradient_norm": ("grad_norm", "gradient_norm", "train/grad_norm", "grad-norm"),
    "train/learning_rate": ("learning_rate", "lr", "train/learning_rate", "train/lr"),
    "train/loss_scale": ("loss_scale", "train/loss_scale"),
    "train/tokens_per_second": ("tokens_per_second", "tokens_per_s", "tokens_per_sec"),
    "time/step": ("step_time_s", "step_time", "time_per_step"),
    "time/data_wait": ("data_wait", "data_wait_s", "data_time"),
    "memory/device_bytes": ("device_bytes", "max_memory_bytes"),
}


Signal = TypeVar("Signal")


@dataclass
class Imported:
    """What a log holds; of steps that were logged twice the last."""

    signals: dict[str, Series]
    times: dict[int, float] = field(default_factory=dict)
    """Seconds since 1970 of steps, where the log tells."""
    histograms: dict[str, list[Spread]] = field(default_factory=dict)
    texts: list[tuple[int, float, str, str]] = field(default_factory=list)
    """Step, time, name, text."""
    settings: dict[str, Setting] = field(default_factory=dict)


def read(path: Path) -> Imported:
    """A folder of event files, or a file. UserError: it is no log that is known here, is damaged, or holds no metrics."""
    try:
        found = _folder(path) if path.is_dir() else _file(path)
    except wire.Malformed as error:
        raise UserError(f"{path}: damaged, or no event file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {why(error)}") from None
    except OverflowError:
        raise UserError(f"{path}: damaged, or no log: a step is beyond 2^63") from None
    if not found.signals and not found.histograms:
        raise UserError(f"{path}: holds no metrics")
    return found


def _file(path: Path) -> Imported:
    if not path.exists():
        raise UserError(f"{path}: there is no such run folder or file")
    tables: dict[str, Callable[[Path], dict[str, Series]]] = {".parquet": read_parquet, ".csv": read_csv}
    if (table := tables.get(path.suffix.lower())) is not None:
        return Imported(table(path))
    if path.suffix.lower() == ".json":
        return _trainer_state(path)
    if (events := _event_reader(path)) is not None:
        return _imported(events(path))
    raise UserError(
        f"{path}: neither a run folder nor a log: event files of TensorBoard or VisualDL, or a folder of them, a "
        "trainer_state.json, or a .csv or .parquet file with metrics"
    )


def _event_reader(path: Path) -> Callable[[Path], Log] | None:
    if "tfevents" in path.name:
        return tensorboard.read
    return visualdl.read if "vdlrecords" in path.name else None


def _folder(path: Path) -> Imported:
    """All event files below it, those of a folder in the order of their names, which is that of their times.

    Signals of a folder inside are called after it: what TensorBoard shows as the run train is train/NAME.
    """
    folders: dict[str, Log] = {}
    for file in sorted(path.rglob("*")):
        if (reader := _event_reader(file)) is not None and file.is_file():
            inside = file.parent.relative_to(path).as_posix()
            folders.setdefault("" if inside == "." else f"{inside}/", Log()).add(reader(file))
    whole = Log()
    for folder, log in folders.items():
        whole.add(_below(folder, log))
    if not whole.scalars and not whole.histograms:
        state = path / "trainer_state.json"
        if state.is_file():
            return _trainer_state(state)
        raise UserError(f"{path}: holds neither metrics.sqlite nor event files of TensorBoard or VisualDL with metrics")
    return _imported(whole)


def _below(folder: str, log: Log) -> Log:
    scalars = {folder + name: points for name, points in log.scalars.items()}
    histograms = {folder + name: spreads for name, spreads in log.histograms.items()}
    return Log(scalars, histograms, log.texts, log.settings)


def _imported(log: Log) -> Imported:
    signals = {name: series([p.step for p in points], [p.value for p in points]) for name, points in log.scalars.items()}
    times = {point.step: point.time for points in log.scalars.values() for point in points if point.time}
    return Imported({name: one for name, one in signals.items() if len(one[0])}, times, log.histograms, log.texts, log.settings)


def _trainer_state(path: Path) -> Imported:
    """What transformers' Trainer keeps beside its checkpoints. UserError: the file is something else."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        history = state["log_history"]
        entries = [entry for entry in history if "train_runtime" not in entry]  # the last one is a summary of the whole run
        found: dict[str, tuple[list[int], list[float]]] = {}
        for entry in entries:
            for name, value in entry.items():
                if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                    steps, values = found.setdefault(name, ([], []))
                    steps.append(int(entry["step"]))
                    values.append(float(value))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: is no trainer_state.json, which has a list of entries with a step under log_history") from None
    known = ("max_steps", "num_train_epochs", "train_batch_size")
    settings: dict[str, Setting] = {name: state[name] for name in known if isinstance(state.get(name), int | float)}
    return Imported({name: series(*one) for name, one in found.items()}, settings=settings)


def renamed(signals: Mapping[str, Signal]) -> dict[str, Signal]:
    """Signals under danlu's names where they are known under another, in any spelling; the others keep theirs."""
    result: dict[str, Signal] = {}
    used: set[str] = set()
    spelled = {_plain(name): name for name in reversed(list(signals))} | {name: name for name in signals}
    for name, aliases in ALIASES.items():
        theirs = (*aliases, name, *map(_plain, aliases))
        alias = next((spelled[alias] for alias in theirs if alias in spelled and spelled[alias] not in used), None)
        if alias is not None:
            used.add(alias)
            result[name] = signals[alias]
    return {**{name: one for name, one in signals.items() if name not in used}, **result}


def _plain(name: str) -> str:
    """Train Loss, train-loss and train_loss are the same."""
    return "_".join(name.lower().replace("-", " ").split())
