"""Fit the efficiency constants to published rows: `python -m danlu.plan.fit FOLDER [--check] [--write]`.

Few constants, each with a physical meaning and a prior that stands for what is known without the rows (vendor and library
benchmarks). The loss is the Cauchy loss of log(planned / measured) plus the distance from the priors; it is minimised by trying
factors up and down, one constant at a time. `--check` fits without one source, or without every fourth row, and scores what was
left out: what to expect of rows that nobody has seen.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ruamel.yaml import YAML

from danlu.errors import UserError
from danlu.plan.constants import FITTED, Rates, allocator_key, priors
from danlu.plan.memory import memory
from danlu.plan.published import Run, read
from danlu.plan.score import folder_of, reported
from danlu.plan.step_time import step_time

PRIOR_SIGMA = {
    "matmul": 0.1,
    "matmul_fp8": 0.15,
    "attention": 0.2,
    "bandwidth": 0.1,
    "node_link": 0.2,
    "network": 0.3,
    "network_latency": 0.5,
    "skew": 1.0,
    "host": 0.5,
}
"""How far a constant may plausibly be from its prior, as the standard deviation of its logarithm."""
SCALE = 0.15
"""Errors well beyond this hardly pull: such a row tells of something else than the constants."""


def error(run: Run, rates: Rates) -> float:
    """log(planned / measured) of the step time."""
    assert run.step_seconds is not None
    return math.log(step_time(run.job, run.hardware, rates).seconds / run.step_seconds)


def fit(runs: Sequence[Run], prior: Rates) -> Rates:
    """The constants of one family that suit the runs and the prior."""
    best, rates = loss(runs, prior, prior), prior
    for factor in (1.2, 1.06, 1.02):
        improved = True
        while improved:
            improved = False
            for name in PRIOR_SIGMA:
                for change in (factor, 1 / factor):
                    trial = rates.model_copy(update={name: getattr(rates, name) * change})
                    if (value := loss(runs, trial, prior)) < best - 1e-9:
                        best, rates, improved = value, trial, True
                        break
    return rates


def loss(runs: Sequence[Run], rates: Rates, prior: Rates) -> float:
    """Sum of the rows' Cauchy losses in units of a 5 % error, and of the squared distances from the prior."""
    misfit = sum(_cauchy(error(run, rates)) for run in runs) / 0.05**2
    distances = ((math.log(getattr(rates, name) / getattr(prior, name)) / sigma) ** 2 for name, sigma in PRIOR_SIGMA.items())
    return misfit + sum(distances) / 2


def _cauchy(value: float) -> float:
    return SCALE**2 / 2 * math.log1p((value / SCALE) ** 2)


def residuals(runs: Sequence[Run], rates: Rates) -> dict[str, float]:
    """(planned - measured) / measured of every row, rounded to a tenth of a percent."""
    return {run.id: round(math.exp(error(run, rates)) - 1, 3) for run in runs}


def cross_validate(runs: Sequence[Run], prior: Rates) -> dict[str, float]:
    """Mean absolute error of rows that the fit did not see: each source in turn, and every fourth row in turn."""
    found = {}
    for source in sorted({run.source for run in runs}):
        found[f"without {source}"] = _held_out(runs, prior, lambda _, run, source=source: run.source == source)  # type: ignore[misc]
    quarters = [_errors(runs, prior, lambda i, _, k=k: i % 4 == k) for k in range(4)]  # type: ignore[misc]
    found["every fourth row"] = mean(abs(value) for errors in quarters for value in errors)
    return found


def _held_out(runs: Sequence[Run], prior: Rates, out: Callable[[int, Run], bool]) -> float:
    return mean(map(abs, _errors(runs, prior, out)))


def _errors(runs: Sequence[Run], prior: Rates, out: Callable[[int, Run], bool]) -> list[float]:
    rates = fit([run for i, run in enumerate(runs) if not out(i, run)], prior)
    return [math.exp(error(run, rates)) - 1 for i, run in enumerate(runs) if out(i, run)]


def fit_allocator(runs: Sequence[Run]) -> float:
    """The factor between what is reserved and what is alive that suits the measured memory best, in hundredths."""
    return min((1 + i / 100 for i in range(60)), key=lambda factor: mean(abs(each) for each in memory_errors(runs, factor)))


def memory_errors(runs: Sequence[Run], factor: float) -> list[float]:
    """log(planned / measured) of the peak memory with an allocator constant."""
    return [math.log(reported(run, memory(run.job, run.hardware, factor))[0] / (run.memory or 1)) for run in runs]


def _fit_times(runs: Sequence[Run], content: dict[str, Any], check: bool) -> None:
    for family, value in priors().items():
        measured = [run for run in runs if run.step_seconds and run.hardware.family == family]
        if not measured:
            continue
        prior = Rates.model_validate(value)
        rates = fit(measured, prior)
        left = residuals(measured, rates)
        print(
            f"{family}: {len(PRIOR_SIGMA)} constants with priors, {len(measured)} rows, error {mean(map(abs, left.values())):.1%}"
        )
        for name in PRIOR_SIGMA:
            print(f"  {name:<16}{getattr(rates, name):12.4g}   prior {getattr(prior, name):.4g}")
        if check:
            for name, found in cross_validate(measured, prior).items():
                print(f"  {name:<30}{found:.1%}")
        content["rates"][family] = {name: float(f"{getattr(rates, name):.4g}") for name in Rates.model_fields}
        content["step_residuals"][family] = left


def _fit_allocators(runs: Sequence[Run], content: dict[str, Any], check: bool) -> None:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.memory and not run.suspect:
            groups[allocator_key(run.job.engine_name, run.job.compile)].append(run)
    for key, members in sorted(groups.items()):
        factor = fit_allocator(members) if members[0].reserved or members[0].job.engine.reports_first_stage else 1.0
        errors = memory_errors(members, factor)
        print(f"{key}: allocator {factor:.2f}, {len(members)} rows, memory error {mean(map(abs, errors)):.1%}")
        if check and factor != 1.0 and len(members) > 3:
            quarters = [[run for i, run in enumerate(members) if i % 4 != k] for k in range(4)]
            held = [e for k, rest in enumerate(quarters) for e in memory_errors(members[k::4], fit_allocator(rest))]
            print(f"  every fourth row              {mean(map(abs, held)):.1%}, lowest {math.exp(min(held)) - 1:+.1%}")
        content["allocator"][key] = factor
        content["memory_residuals"].update(
            {run.id: round(math.exp(each) - 1, 3) for run, each in zip(members, errors, strict=True)}
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m danlu.plan.fit", description=__doc__)
    parser.add_argument("folder", nargs="?", help="holds steps.csv")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {FITTED} of the source tree")
    parser.add_argument("--check", action="store_true", help="also cross-validate; takes some minutes")
    arguments = parser.parse_args()
    try:
        rows = read(folder_of(arguments.folder))
    except UserError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    content: dict[str, Any] = {"rates": {}, "allocator": {}, "step_residuals": {}, "memory_residuals": {}}
    runs = list(rows.runs.values())
    _fit_times(runs, content, arguments.check)
    _fit_allocators(runs, content, arguments.check)
    if arguments.write:
        with (Path(__file__).parent / FITTED).open("w", encoding="utf-8") as file:
            file.write("# Written by `python -m danlu.plan.fit FOLDER --write`. Residuals are (planned - measured) / measured.\n")
            YAML().dump(content, file)


if __name__ == "__main__":
    main()
