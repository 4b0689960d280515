"""Fit the efficiency constants to published rows: `python -m danlu.plan.fit FOLDER [--write]`.

Few constants, each with a physical meaning and a prior that stands for what is known without the rows (vendor and library
benchmarks). The loss is the mean Huber loss of log(planned / measured) plus the distance from the priors; it is minimised by trying
factors up and down, one constant at a time. `--check` fits without one source, or without every fourth row, and scores what was
left out: what to expect of rows that nobody has seen.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ruamel.yaml import YAML

from danlu.errors import UserError
from danlu.plan.constants import FILE, Rates, stored
from danlu.plan.published import Run, read
from danlu.plan.score import folder_of
from danlu.plan.step_time import step_time

PRIOR_SIGMA = {
    "matmul": 0.1,
    "matmul_fp8": 0.15,
    "attention": 0.2,
    "bandwidth": 0.1,
    "node_link": 0.2,
    "network": 0.3,
    "launch": 0.5,
    "node_latency": 0.5,
    "network_latency": 0.5,
    "skew": 1.0,
    "host": 0.5,
}
"""How far a constant may plausibly be from its prior, as the standard deviation of its logarithm."""
HUBER = 0.15
"""Errors beyond this weigh linearly, so that one odd row does not bend the constants."""


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
    """Sum of the rows' Huber losses in units of a 5 % error, and of the squared distances from the prior."""
    misfit = sum(_huber(error(run, rates)) for run in runs) / 0.05**2
    distances = ((math.log(getattr(rates, name) / getattr(prior, name)) / sigma) ** 2 for name, sigma in PRIOR_SIGMA.items())
    return misfit + sum(distances) / 2


def _huber(value: float) -> float:
    size = abs(value)
    return size * size / 2 if size < HUBER else HUBER * (size - HUBER / 2)


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m danlu.plan.fit", description=__doc__)
    parser.add_argument("folder", nargs="?", help="holds steps.csv")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {FILE} of the source tree")
    parser.add_argument("--check", action="store_true", help="also cross-validate; takes some minutes")
    arguments = parser.parse_args()
    try:
        rows = read(folder_of(arguments.folder))
    except UserError as problem:
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    content: dict[str, Any] = dict(stored())
    for family, value in content["priors"].items():
        runs = [run for run in rows.runs.values() if run.step_seconds and run.hardware.family == family]
        if not runs:
            continue
        prior = Rates.model_validate(value)
        rates = fit(runs, prior)
        left = residuals(runs, rates)
        print(f"{family}: {len(PRIOR_SIGMA)} constants with priors, {len(runs)} rows, error {mean(map(abs, left.values())):.1%}")
        for name in PRIOR_SIGMA:
            print(f"  {name:<16}{getattr(rates, name):12.4g}   prior {getattr(prior, name):.4g}")
        if arguments.check:
            for name, found in cross_validate(runs, prior).items():
                print(f"  {name:<30}{found:.1%}")
        content["rates"][family] = {name: float(f"{getattr(rates, name):.4g}") for name in PRIOR_SIGMA}
        content["residuals"][family] = left
    if arguments.write:
        yaml = YAML()
        yaml.default_flow_style = False
        with (Path(__file__).parent / FILE).open("w", encoding="utf-8") as file:
            file.write("# Written by `python -m danlu.plan.fit FOLDER --write`; priors are by hand, see their sources in docs.\n")
            yaml.dump(content, file)


if __name__ == "__main__":
    main()
