"""The report of a run: one HTML file that holds its curves, recipe, samples and figures, and needs no network to open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from danlu.errors import UserError
from danlu.watch import assets
from danlu.watch.answers import Answers
from danlu.watch.facts import collect
from danlu.watch.signals import Signals


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
    data = content(run_folder)
    page = assets.page(data["name"], data)
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, report)
    except OSError as error:
        raise UserError(f"{report}: cannot be written ({error.strerror})") from error
    return report


def content(run_folder: Path) -> dict[str, Any]:
    """All that the report shows."""
    data = collect(run_folder)
    if not data["names"]:
        return {**data, "curves": {}, "axes": {}}
    metrics, answers = run_folder / "metrics.sqlite", Answers(Signals())
    found = answers.curves({"": metrics}, data["names"])
    return {**data, "curves": {name: one[""] for name, one in found.items() if one}, "axes": answers.axes(metrics)}
