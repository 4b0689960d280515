"""``python -m danlu.doctor.score [FOLDER] [--json FILE] [--until SHARE]``: the doctor on a folder of labelled public logs.

The folder holds a manifest.csv (file, source_repo, group, hyperparameters, label, kind) and one long Parquet table a run. It is
no part of the repository; DANLU_DOCTOR_RUNS names it where no argument does.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from danlu.doctor.diagnose import diagnose
from danlu.doctor.finding import Severity
from danlu.doctor.load import load, read_facts
from danlu.errors import EXIT_USAGE, UserError

VARIABLE = "DANLU_DOCTOR_RUNS"
COLUMNS = {"file", "source_repo", "group", "hyperparameters", "label", "kind"}
LABELS = ("healthy", "broken", "overfit")
CHUNK = 16


@dataclass(frozen=True)
class Outcome:
    """What the doctor said of one run: ids of the causes of warning or above, the first first, and of their symptoms."""

    file: str
    source: str
    group: str
    label: str
    kind: str
    causes: tuple[str, ...]
    symptoms: tuple[str, ...]

    @property
    def noticed(self) -> bool:
        """Whether there is a finding of warning or above; of an over-fitted run, the one that says so."""
        return "overfitting" in (*self.causes, *self.symptoms) if self.label == "overfit" else bool(self.causes)

    @property
    def half(self) -> int:
        """Which half of the groups it belongs to, by a hash of their names."""
        return zlib.crc32(f"{self.source}/{self.group}".encode()) % 2


def judge(job: tuple[Path, dict[str, str], float]) -> Outcome:
    """Diagnose one run of a manifest, or the first share of it."""
    folder, row, share = job
    evidence = load(folder / row["file"], read_facts(row["hyperparameters"]))
    found = diagnose(evidence if share == 1 else evidence.until(share)).findings
    grave = [finding for finding in found if finding.severity >= Severity.WARNING]
    symptoms = [symptom.rule for finding in grave for symptom in finding.symptoms]
    return Outcome(
        row["file"],
        row["source_repo"],
        row["group"],
        row["label"],
        row["kind"],
        tuple(finding.rule for finding in grave),
        tuple(symptoms),
    )


def manifest(folder: Path) -> list[dict[str, str]]:
    """The rows of the folder's manifest. UserError: there is none, or it lacks a column."""
    path = folder / "manifest.csv"
    if not path.is_file():
        raise UserError(f"{path}: there is no such manifest; give the folder of the labelled logs, or set {VARIABLE} to it")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if missing := COLUMNS - set(rows[0] if rows else ()):
        raise UserError(f"{path}: has no column {', '.join(sorted(missing))}")
    return rows


def figures(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """The flat summary. A group's share of flagged healthy runs counts once, however many seeds the group has."""
    runs: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        runs[outcome.label].append(outcome)
    groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for outcome in runs["healthy"]:
        groups[outcome.source, outcome.group].append(outcome.noticed)
    shares = [sum(flags) / len(flags) for flags in groups.values()]
    return {
        "healthy_runs": len(runs["healthy"]),
        "healthy_flagged": sum(outcome.noticed for outcome in runs["healthy"]),
        "healthy_groups": len(groups),
        "healthy_group_share_flagged": sum(shares) / len(shares) if shares else 0.0,
        "broken_runs": len(runs["broken"]),
        "broken_noticed": sum(outcome.noticed for outcome in runs["broken"]),
        "overfit_runs": len(runs["overfit"]),
        "overfit_noticed": sum(outcome.noticed for outcome in runs["overfit"]),
    }


def table(outcomes: list[Outcome]) -> Iterable[str]:
    """Noticed runs by source and kind, the causes named, and the same figures for either half of the groups."""
    rows: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        rows[outcome.label, outcome.kind, outcome.source].append(outcome)
    yield f"{'label':<8} {'kind':<10} {'source':<38} {'runs':>5} {'flagged':>7}  causes"
    for (label, kind, source), ones in sorted(rows.items()):
        causes: dict[str, int] = defaultdict(int)
        for outcome in ones:
            if outcome.noticed:
                causes["overfitting" if label == "overfit" else outcome.causes[0]] += 1
        named = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items(), key=lambda item: -item[1]))
        yield f"{label:<8} {kind:<10} {source:<38} {len(ones):>5} {sum(one.noticed for one in ones):>7}  {named}"
    yield ""
    yield f"{'groups':<8} {'healthy flagged':>16} {'mean of groups':>15} {'broken noticed':>15} {'overfit named':>14}"
    for name, part in (("all", outcomes), *((f"half {half}", [one for one in outcomes if one.half == half]) for half in (0, 1))):
        one = figures(part)
        yield (
            f"{name:<8} {one['healthy_flagged']:>8} of {one['healthy_runs']:<5}{one['healthy_group_share_flagged']:>14.1%} "
            f"{one['broken_noticed']:>8} of {one['broken_runs']:<4}{one['overfit_noticed']:>7} of {one['overfit_runs']:<4}"
        )
    for outcome in outcomes:
        if outcome.label == "healthy" and outcome.noticed:
            yield f"false alarm: {outcome.file} ({outcome.group}): {', '.join(outcome.causes)}"
        if outcome.label in LABELS[1:] and not outcome.noticed:
            yield f"missed: {outcome.file} ({outcome.group}), {outcome.kind}"


def main(arguments: list[str]) -> int:
    """Print the table and write the figures; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m danlu.doctor.score")
    parser.add_argument("folder", nargs="?", default=os.environ.get(VARIABLE))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--until", type=float, default=1.0, help="judge as if only this share of each run were done yet")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    try:
        if not options.folder:
            raise UserError(f"no folder of labelled logs; make doctor-score RUNS=FOLDER, or set {VARIABLE}")
        folder = Path(options.folder)
        jobs = [(folder, row, options.until) for row in manifest(folder)]
        with ProcessPoolExecutor(options.processes) as pool:
            outcomes = list(pool.map(judge, jobs, chunksize=CHUNK))
    except UserError as error:
        print(f"danlu: {error}", file=sys.stderr)
        return EXIT_USAGE
    for line in table(outcomes):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(figures(outcomes), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
