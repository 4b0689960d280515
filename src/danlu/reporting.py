"""The report of a run with the doctor's word in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from danlu.doctor import show
from danlu.doctor.diagnose import diagnose
from danlu.doctor.load import from_run, from_store
from danlu.run_folder import RunFolder
from danlu.watch import report


def write_report(folder: Path) -> Path:
    """See `danlu.watch.report`. Where the doctor cannot judge, the report says why."""
    return report.write_report(folder, diagnosis(folder))


def diagnosis(folder: Path) -> dict[str, Any] | None:
    """As the live page gets it; None where there are no metrics yet."""
    run = RunFolder(folder)
    if not run.metrics.is_file():
        return None
    try:
        evidence = from_run(run) if run.recipe_file.is_file() else from_store(run.metrics, {})
        if not (step := evidence.last_step()):
            return None
        found = show.as_json(diagnose(evidence), run.path.name)
    except Exception as error:  # a report is worth having without it, above all that of a damaged run
        said = (str(error) or type(error).__name__).splitlines()[0]
        return {"state": "failed", "error": said.replace(f"{folder}/", "")}  # a report is passed on
    return {"state": "ready", "step": step, "current": True, **found}
