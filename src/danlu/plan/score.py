"""Predictions beside published measurements: `python -m danlu.plan.score FOLDER [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from danlu.errors import UserError
from danlu.plan.memory import Memory, Verdict, memory
from danlu.plan.published import Ranking, Rows, Run, read
from danlu.plan.step_time import step_time

VARIABLE = "DANLU_PLANNER_ROWS"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Scored:
    """One run, predicted. Errors are (predicted - measured) / measured."""

    run: Run
    seconds: float
    memory: float
    bound: float
    verdict: Verdict

    @property
    def step_error(self) -> float | None:
        """Of the step time; None: not measured."""
        measured = self.run.step_seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def memory_error(self) -> float | None:
        """Of the peak memory; None: not measured."""
        measured = self.run.memory
        return None if measured is None else self.memory / measured - 1

    @property
    def bound_error(self) -> float | None:
        """Of the bound; below 0 it is no bound."""
        measured = self.run.memory
        return None if measured is None else self.bound / measured - 1


def predict(run: Run) -> Scored:
    """All that the planner says about a run."""
    needed = memory(run.job, run.hardware)
    peak, bound = reported(run, needed)
    return Scored(run, step_time(run.job, run.hardware).seconds, peak, bound, needed.verdict(run.hardware))


def reported(run: Run, needed: Memory) -> tuple[float, float]:
    """Estimate and bound of the device whose memory the source reports: the fullest, or the first."""
    if run.job.engine.reports_first_stage:
        return needed.stages[0].estimate, needed.stages[0].bound
    return needed.peak, needed.bound


def score(rows: Rows) -> tuple[list[Scored], dict[str, Any]]:
    """Every row predicted, and the figures of all."""
    scored = {each: predict(run) for each, run in rows.runs.items()}
    steps = [abs(e) for each in scored.values() if (e := each.step_error) is not None]
    memories = [abs(e) for each in scored.values() if (e := each.memory_error) is not None]
    sound = [abs(e) for each in scored.values() if (e := each.memory_error) is not None and not each.run.suspect]
    oom = [each for each in scored.values() if each.run.outcome == "oom"]
    figures = {
        "step_rows": len(steps),
        "step_mean_abs_error": mean(steps) if steps else None,
        "step_worst": max(steps, default=None),
        "memory_rows": len(memories),
        "memory_mean_abs_error": mean(memories) if memories else None,
        "memory_worst": max(memories, default=None),
        "memory_mean_abs_error_without_suspect": mean(sound) if sound else None,
        "bound_violations": sum(e < 0 for each in scored.values() if (e := each.bound_error) is not None),
        "rankings": len(rows.rankings),
        "rankings_right": sum(right(pair, scored) for pair in rows.rankings),
        "oom_rows": len(oom),
        "oom_right": sum(each.verdict != "fits" for each in oom),
        "ran_but_tight": sum(each.verdict == "tight" for each in scored.values() if each.run.outcome == "ok"),
        "ran_but_refused": sum(each.verdict == "no" for each in scored.values() if each.run.outcome == "ok"),
        "skipped": len(rows.skipped),
    }
    return list(scored.values()), figures


def right(pair: Ranking, scored: dict[str, Scored]) -> bool:
    """Whether the planner puts the better row first."""
    better, worse = scored[pair.better], scored[pair.worse]
    if pair.metric == "feasibility":
        return VERDICTS.index(better.verdict) < VERDICTS.index(worse.verdict)
    if pair.metric == "peak_memory":
        return better.memory < worse.memory
    return _rate(better) > _rate(worse)


def _rate(one: Scored) -> float:
    return one.run.job.global_batch * one.run.job.sequence / (one.seconds * one.run.job.devices)


def print_table(scored: list[Scored], rows: Rows, figures: dict[str, Any]) -> None:
    """Every row, means by source, rankings, and what was skipped."""
    print(f"{'row':<34}{'step s':>10}{'planned':>10}{'error':>8}  {'peak GB':>8}{'planned':>9}{'error':>8}{'bound':>8}  fits")
    for each in scored:
        run = each.run
        step = f"{run.step_seconds:10.3f}{each.seconds:10.3f}{each.step_error:+8.1%}" if run.step_seconds else " " * 28
        space = " " * 33
        if run.memory:
            space = f"{run.memory / 1e9:8.2f}{each.memory / 1e9:9.2f}{each.memory_error:+8.1%}{each.bound_error:+8.1%}"
        elif run.outcome == "oom":
            space = f"{'oom':>8}{each.memory / 1e9:9.2f}{'':16}"
        remark = "  (suspect, says its source)" if run.suspect else ""
        remark += "  <- wrong" if each.verdict == ("no" if run.outcome == "ok" else "fits") else ""
        print(f"{run.id:<34}{step}  {space}  {each.verdict}{remark}")
    print()
    groups: dict[str, list[Scored]] = defaultdict(list)
    for each in scored:
        groups[f"{each.run.source}, {each.run.hardware.family}"].append(each)
    print(f"{'group':<34}{'rows':>5}{'step error':>12}{'bias':>8}{'rows':>7}{'memory error':>14}{'bias':>8}")
    for name, members in groups.items():
        steps = [e for each in members if (e := each.step_error) is not None]
        spaces = [e for each in members if (e := each.memory_error) is not None]
        print(f"{name:<34}{_summary(steps, 5, 12)}{_summary(spaces, 7, 14)}")
    print()
    by_id = {each.run.id: each for each in scored}
    for pair in rows.rankings:
        better, worse = by_id[pair.better], by_id[pair.worse]
        ratio = f", published {pair.ratio}, planned {_rate(better) / _rate(worse):.3f}" if pair.metric == "throughput" else ""
        print(f"{'right' if right(pair, by_id) else 'WRONG'}  {pair.better} over {pair.worse} ({pair.metric}{ratio})")
    for identity, why in rows.skipped.items():
        print(f"skipped {identity}: {why}")
    print()
    for name, value in figures.items():
        print(f"{name:<40}{value if isinstance(value, int) or value is None else format(value, '.4f')}")


def _summary(errors: list[float], rows: int, width: int) -> str:
    if not errors:
        return f"{0:>{rows}}{'-':>{width}}{'-':>8}"
    return f"{len(errors):>{rows}}{mean(map(abs, errors)):>{width}.1%}{mean(errors):>+8.1%}"


def folder_of(argument: str | None) -> Path:
    """The folder that is asked for, or the one that the environment names. UserError: neither."""
    name = argument or os.environ.get(VARIABLE)
    if not name:
        raise UserError(f"no folder of published rows; give one, as in make planner-score ROWS=folder, or set {VARIABLE}")
    return Path(name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m danlu.plan.score", description=__doc__)
    parser.add_argument("folder", nargs="?", help=f"holds steps.csv and rankings.csv; absent: ${VARIABLE}")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    try:
        rows = read(folder_of(arguments.folder))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    scored, figures = score(rows)
    print_table(scored, rows, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
