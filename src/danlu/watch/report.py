"""The report of a run: one HTML file that holds its curves, recipe, samples and figures, and needs no network to open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from danlu.errors import UserError
from danlu.watch import assets, pictures
from danlu.watch.answers import Answers
from danlu.watch.facts import collect
from danlu.watch.signals import Signals

CELLS = 300_000
"""Values of the pictures of layers in one report, about: some megabytes."""
HISTOGRAMS, HISTOGRAM_COLUMNS = 24, 60


def write_report(run_folder: Path, doctor: dict[str, Any] | None = None) -> Path:
    """Write ``report.html`` into the run folder from what lies there, and return its path.

    Read are metrics.sqlite, recipe.yaml, environment.json, data/index.json, evaluation.json, samples.json, summary.json and
    checkpoints/; the section of one that is missing is left out, and one that cannot be read is named in the report instead.
    ``doctor`` is what is said of the run's health, as the page takes it. The old report stays until the new one is complete.

    Raises:
        UserError: the run folder does not exist, or the report cannot be written into it.
    """
    if not run_folder.is_dir():
        raise UserError(f"{run_folder}: no such run folder")
    report = run_folder / "report.html"
    aside = report.with_name("report.html.partial")
    data = content(run_folder) | {"doctor": doctor}
    page = assets.page(data["name"], data)
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, report)
    except OSError as error:
        raise UserError(f"{report}: cannot be written ({error.strerror})") from error
    return report


def content(run_folder: Path) -> dict[str, Any]:
    """All that the report shows. Of histograms so many tensors are in it, spread over all; the live page has the others."""
    data = collect(run_folder)
    names, tensors = data["names"], data["histogram_names"]
    if not names and not tensors:
        return {**data, "curves": {}, "axes": {}, "layers": {}, "histograms": {}}
    metrics, signals = run_folder / "metrics.sqlite", Signals()
    answers = Answers(signals)
    found = answers.curves({"": metrics}, [name for name in names if not pictures.LAYER.fullmatch(name)], at_once=False)
    kinds = pictures.layer_kinds(names)
    columns = max(20, min(120, CELLS // max(1, sum(bool(pictures.LAYER.fullmatch(name)) for name in names))))
    chosen = [tensors[at * len(tensors) // min(len(tensors), HISTOGRAMS)] for at in range(min(len(tensors), HISTOGRAMS))]
    return {
        **data,
        "histogram_names": chosen,
        "curves": {name: one[""] for name, one in found.items() if one},
        "axes": answers.axes(metrics),
        "layers": {kind: pictures.layers(signals, metrics, kind, columns) for kind in kinds},
        "histograms": {name: pictures.histograms(metrics, name, HISTOGRAM_COLUMNS) for name in chosen},
    }
