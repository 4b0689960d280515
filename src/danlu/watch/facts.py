"""What lies in a run folder besides its curves, as data that JSON can hold: figures, samples, events, files."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import danlu
from danlu.errors import UserError
from danlu.watch import store
from danlu.watch.curves import figure_or_text
from danlu.watch.ends import first, newest

EVENTS = 1000
"""Events that are shown, at most; the newest ones, and the page says how many there are."""
SAMPLES = 40
"""Texts made while the run trained that are shown, at most; all of them are among its events."""
ALIVE_SECONDS = 7.0
"""A recorder that has been silent for longer is gone: it gives a sign of life every second."""

ENDINGS = {"finished": "finished", "stop": "stopped", "interrupted": "interrupted"}
RECENT = 1000
"""Newest steps whose median speed stands for the run's."""


def collect(run_folder: Path) -> dict[str, Any]:
    """All that a page shows of one run besides its curves. What is missing is empty, what cannot be read is among `problems`."""
    problems: list[str] = []

    def read(name: str, parse: Callable[[Path], Any], kind: type) -> Any:
        path = run_folder / name
        if not path.exists():
            return kind()
        try:
            content = parse(path)
        except (OSError, ValueError, UserError) as error:
            # A report is passed on: it names the file by its place in the run folder only.
            problems.append(f"{name}: {str(error).splitlines()[0].replace(f'{path}: ', '')}")
            return kind()
        if not isinstance(content, kind):
            problems.append(f"{name}: holds no {'object' if kind is dict else 'list'}")
            return kind()
        return content

    summary = read("summary.json", _parse_json, dict)
    recipe = read("recipe.yaml", _parse_yaml, dict)
    evaluation = read("evaluation.json", _parse_json, dict)
    metrics = read("metrics.sqlite", _metrics, dict)
    samples = read("samples.json", _parse_json, list)
    return {
        "name": str(summary.get("name") or recipe.get("name") or run_folder.absolute().name),
        "danlu": danlu.__version__,
        "written": time.time(),
        "problems": problems,
        "headline": _headline(summary, evaluation, metrics),
        "model": _model(recipe, summary),
        "status": metrics.pop("status", None),
        "total": metrics.get("total"),
        **{
            key: metrics.get(key, empty)
            for key, empty in (("names", []), ("histogram_names", []), ("events", []), ("events_total", 0))
        },
        "samples": [sample for sample in samples if isinstance(sample, dict)] + metrics.get("samples", []),
        "evaluation": _flat(evaluation),
        "data": _flat(read("data/index.json", _parse_json, dict)) + _pages(run_folder, ["curated/curation.html"]),
        "environment": _flat(read("environment.json", _parse_json, dict)),
        "checkpoints": _checkpoints(run_folder / "checkpoints"),
        "recipe": read("recipe.yaml", _parse_text, str),
    }


def _parse_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _parse_json(path: Path) -> Any:
    return _printable(json.loads(path.read_text(encoding="utf-8")))


def _parse_yaml(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ValueError(f"not valid YAML ({error})") from error


def _metrics(path: Path) -> dict[str, Any]:
    segments, happened = store.segments(path), store.events(path)
    return {
        "names": store.names(path),
        "histogram_names": store.histogram_names(path),
        "events": [_event(event, segments) for event in happened[-EVENTS:]],
        "events_total": len(happened),
        "samples": _samples(segments, happened),
        "seconds": sum(segment.seen - segment.started for segment in segments),
        "status": status(segments, ending(segments, happened)),
        "total": segments[-1].info.get("steps") if segments else None,
        "first_loss": first(path, "train/loss"),
        "loss": newest(path, "train/loss"),
        "speed": newest(path, "train/tokens_per_second", RECENT),
        "validation": newest(path, "validation/loss"),
    }


def _event(event: store.Event, segments: list[store.Segment]) -> dict[str, Any]:
    """An event as the page wants it; `replaced` says that a later segment went back behind it."""
    later = [segment.first_step for segment in segments if segment.id > event.segment]
    replaced = bool(later) and event.step >= min(later)
    return {"step": event.step, "time": event.time, "kind": event.kind, "message": event.message, "replaced": replaced}


def _samples(segments: list[store.Segment], happened: list[store.Event]) -> list[dict[str, Any]]:
    """The newest texts that were made while the run trained, the newest first."""
    made = [event for event in happened if event.kind == "sample" and not _event(event, segments)["replaced"]]
    newest_first = made[: -SAMPLES - 1 : -1]
    return [{"prompt": str(one.data.get("prompt", "")), "text": one.message, "step": one.step} for one in newest_first]


def ending(segments: list[store.Segment], happened: list[store.Event]) -> str | None:
    """How the newest segment ended, if it said so: finished, stopped or interrupted."""
    for event in reversed(happened):
        if event.segment == segments[-1].id and event.kind in ENDINGS:
            return ENDINGS[event.kind]
    return None


def status(segments: list[store.Segment], ended: str | None) -> str | None:
    """How the newest segment stands: what `ending` says, or else running, or broken off without a word."""
    if not segments:
        return None
    if ended is not None:
        return ended
    return "running" if time.time() - segments[-1].seen < ALIVE_SECONDS else "broken_off"


def _headline(summary: dict[str, Any], evaluation: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """The figures on top: the summary's own where it has them, else what the other files tell."""
    nothing: store.Series = (np.empty(0, dtype=np.int64), np.empty(0))
    (steps, losses), (_, speeds), (_, validations) = (metrics.pop(name, nothing) for name in ("loss", "speed", "validation"))
    begun = metrics.pop("first_loss", None)
    speeds = speeds[np.isfinite(speeds)]
    known: dict[str, Any] = {
        "first_loss": None if begun is None else _figure(begun),
        "last_loss": _figure(losses[-1]) if len(losses) else None,
        "last_validation_loss": evaluation.get("loss", _figure(validations[-1]) if len(validations) else None),
        "steps": int(steps[-1]) if len(steps) else None,
        "seconds": metrics.get("seconds"),
        "tokens_per_second": float(np.median(speeds)) if len(speeds) else None,
    }
    found = {key: summary[key] if summary.get(key) is not None else value for key, value in known.items()}
    found["perplexity"] = evaluation.get("perplexity")
    return {key: value for key, value in found.items() if value is not None}


def _model(recipe: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """What is trained, in a line: facts that the page joins."""
    model, train = (section if isinstance(section := recipe.get(key), dict) else {} for key in ("model", "train"))
    title = model.get("preset") or model.get("hugging_face") or model.get("family")
    return {
        "title": None if title is None else str(title),
        "parameters": summary.get("parameters"),
        "settings": [str(train[key]) for key in ("engine", "precision") if key in train],
    }


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    """The complete checkpoints, newest first: step, bytes on disk, time."""
    found = []
    for place in folder.glob("step-*"):
        if (match := re.fullmatch(r"step-(\d+)", place.name)) and place.is_dir():
            files = [file.stat() for file in place.rglob("*") if file.is_file()]
            found.append({"step": int(match[1]), "bytes": sum(file.st_size for file in files), "time": place.stat().st_mtime})
    return sorted(found, key=lambda checkpoint: -int(checkpoint["step"]))


def _pages(run_folder: Path, names: list[str]) -> list[tuple[str, Any]]:
    """Where the run folder has pages of its own on a subject."""
    return [("page", name) for name in names if (run_folder / name).is_file()]


def _flat(tree: dict[str, Any], depth: int = 2) -> list[tuple[str, Any]]:
    """The leaves of nested objects as (dotted key, value), and short plain lists; lists of objects are no facts of one line."""
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{inner}", leaf) for inner, leaf in _flat(value, depth - 1)] if depth else []
        elif isinstance(value, list):
            if value and not any(isinstance(item, dict | list) for item in value):
                rows.append((key, ", ".join(map(str, value[:8])) + (", …" if len(value) > 8 else "")))
        elif value is not None:
            rows.append((key, value))
    return rows


def _printable(value: Any) -> Any:
    """The same JSON value with NaN and infinities as text, which strict JSON lacks."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _figure(value: float) -> float | str:
    """Seven digits; what is not finite as text."""
    return figure_or_text(float(f"{value:.7g}"))
