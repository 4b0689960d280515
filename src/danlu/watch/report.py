"""The report of a run: one HTML file that holds its curves, recipe, samples and figures, and needs no network to open."""

from __future__ import annotations

import html
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import danlu
from danlu.errors import UserError
from danlu.watch import store
from danlu.watch.curves import curves

EVENTS = 1000
"""Events that are shown, at most; the newest ones, and the report says how many there are."""
ALIVE_SECONDS = 10.0
"""A recorder that has been silent for longer is gone: it gives a sign of life every second."""

_ENDINGS = {"finished": "finished", "stop": "stopped", "interrupted": "interrupted"}
_PAGE = resources.files("danlu.watch")


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into the run folder from what lies there, and return its path.

    Read are metrics.sqlite, recipe.yaml, environment.json, data/index.json, evaluation.json, samples.json, summary.json and
    checkpoints/; the section of one that is missing is left out, and one that cannot be read is named in the report instead.
    The old report stays until the new one is complete.

    Raises:
        UserError: the run folder does not exist, or the report cannot be written into it.
    """
    if not run_folder.is_dir():
        raise UserError(f"{run_folder}: no such run folder")
    report = run_folder / "report.html"
    aside = report.with_name("report.html.partial")
    page = _page(collect(run_folder))
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, report)
    except OSError as error:
        raise UserError(f"{report}: cannot be written ({error.strerror})") from error
    return report


def collect(run_folder: Path) -> dict[str, Any]:
    """All that the report shows, as data that JSON can hold."""
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
        **{key: metrics.get(key) for key in ("curves", "events", "events_total")},
        "samples": [sample for sample in samples if isinstance(sample, dict)],
        "evaluation": _flat(evaluation),
        "data": _flat(read("data/index.json", _parse_json, dict)),
        "environment": _flat(read("environment.json", _parse_json, dict)),
        "checkpoints": _checkpoints(run_folder / "checkpoints"),
        "recipe": read("recipe.yaml", _parse_text, str),
    }


def _page(data: dict[str, Any]) -> str:
    # With "<" escaped, no text of the run, however hostile, can end the script element that holds it.
    payload = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(data["name"]),
        "style": _text("vendor/uPlot.min.css") + _text("report.css"),
        "data": payload,
        "script": _text("vendor/uPlot.iife.min.js") + "".join(_text(f"report-{part}.js") for part in ("words", "charts", "page")),
    }
    return re.sub(r"\{\{(title|style|data|script)\}\}", lambda match: parts[match[1]], _text("report.html"))


def _text(name: str) -> str:
    return _PAGE.joinpath(name).read_text(encoding="utf-8")


# --- what lies in the run folder -----------------------------------------------------------------------------------------------


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
        "curves": curves(path),
        "events": [_event(event, segments) for event in happened[-EVENTS:]],
        "events_total": len(happened),
        "seconds": sum(segment.seen - segment.started for segment in segments),
        "status": _status(segments, happened),
    }


def _event(event: store.Event, segments: list[store.Segment]) -> dict[str, Any]:
    """An event as the page wants it; `replaced` says that a later segment went back behind it."""
    later = [segment.first_step for segment in segments if segment.id > event.segment]
    replaced = bool(later) and event.step >= min(later)
    return {"step": event.step, "time": event.time, "kind": event.kind, "message": event.message, "replaced": replaced}


def _status(segments: list[store.Segment], happened: list[store.Event]) -> str | None:
    """How the newest segment stands: finished, stopped, interrupted, running, or broken off without a word."""
    if not segments:
        return None
    endings = [event.kind for event in happened if event.segment == segments[-1].id and event.kind in _ENDINGS]
    if endings:
        return _ENDINGS[endings[-1]]
    return "running" if time.time() - segments[-1].seen < ALIVE_SECONDS else "broken_off"


def _headline(summary: dict[str, Any], evaluation: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """The figures on top: the summary's own where it has them, else what the other files tell."""
    recorded = metrics.get("curves") or {}
    loss, speed = recorded.get("train/loss"), recorded.get("train/tokens_per_second")
    known: dict[str, Any] = {
        "first_loss": loss["values"][0] if loss else None,
        "last_loss": loss["last"] if loss else None,
        "last_validation_loss": evaluation.get("loss", recorded.get("validation/loss", {}).get("last")),
        "steps": loss["steps"][-1] if loss else None,
        "seconds": metrics.get("seconds"),
        "tokens_per_second": _median(speed.get("means", speed["values"])) if speed else None,
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


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
