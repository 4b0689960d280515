"""The doctor on faults that are injected into the real trainer: does it name the cause, how soon, and is it silent on the twins?

Every fault is one switch; its twin is the same recipe and seed without it. A run trains a tiny model for some seconds on one
thread. What is judged is the first that the doctor said, ahead of the first step or inside the loop, of warning or above; in
the loop a run with a fault ends there, while a twin trains all its steps. Results are kept as they come, so that a benchmark
that was stopped goes on; after a change of the code that a run depends on it begins anew. --pooled takes results of other code
too, and the figures and the page then say so.

    faults               runs with a fault (faults x seeds)
    named                share of them whose first finding names the cause
    noticed              share of them with any finding
    median_delay_steps   from the first step at which it could be seen to the first finding
    twins, twins_clean   healthy runs, and the share of them without a finding
    wanted               runs of both kinds that a whole benchmark has
    versions             how many of the results are of which code

Usage: python benchmarks/doctor/run.py [--only WORDS] [--seeds 3] [--parallel 2] [--folder F] [--json FILE] [--page FILE]
                                       [--pooled]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.doctor.fault import BASES, CURVE, Base, Fault
from benchmarks.doctor.page import page
from benchmarks.doctor.version import UNKNOWN, version

HERE = Path(__file__).resolve()
Twin = tuple[str, int, list[Any]]
"""Id, seed and what the doctor told."""
Key = tuple[str, int]
"""The id of a fault, or `twin: NAME`, and a seed."""


def faults() -> dict[str, Fault]:
    """All of them, by id."""
    from benchmarks.doctor import faults_data, faults_model, faults_optimizer, faults_system, faults_tuning

    kinds = (faults_data, faults_model, faults_optimizer, faults_system, faults_tuning)
    return {fault.id: fault for kind in kinds for fault in kind.FAULTS}


def twin(base: Base) -> str:
    """Its id among the results."""
    return f"twin: {base.name}"


class Results:
    """Outcomes by run, in a file with a line each; of other code than `code` only where they are to be pooled."""

    def __init__(self, folder: Path, code: str, pooled: bool) -> None:
        self.file, self.code, self.pooled = folder / "results.jsonl", code, pooled
        self.found: dict[Key, dict[str, Any]] = {}
        self.others: Counter[str] = Counter()
        """Results that are left out, by the version of their code."""
        for line in self.file.read_text("utf-8").splitlines() if self.file.is_file() else ():
            one = {"code": UNKNOWN} | json.loads(line)
            if pooled or one["code"] == code:
                self.found[one["id"], one["seed"]] = one
            else:
                self.others[one["code"]] += 1

    def reloaded(self) -> Results:
        """With what has come since."""
        return Results(self.file.parent, self.code, self.pooled)

    def versions(self, names: Iterable[str]) -> dict[str, int]:
        """How many results of these runs are of which code."""
        wanted = set(names)
        return dict(Counter(one["code"] for (name, _), one in self.found.items() if name in wanted).most_common())


def first_visible(fault: Fault, faulty: dict[str, Any], healthy: dict[str, Any] | None) -> int:
    """Where the fault says, or where three losses in a row are 5 % from the twin's."""
    if fault.visible != CURVE:
        return int(fault.visible)
    if healthy is None:
        return 1
    pairs = list(zip(faulty["losses"], healthy["losses"], strict=False))
    for step in range(len(pairs) - 2):
        if all(abs(one - other) > 0.05 * abs(other) or one != one for one, other in pairs[step : step + 3]):
            return step + 1
    return 1


def judged(fault: Fault, outcome: dict[str, Any], healthy: dict[str, Any] | None) -> dict[str, Any]:
    """Whether the first finding names the cause, whether there is one, and how late it came."""
    told = outcome["told"]
    seen = first_visible(fault, outcome, healthy)
    return {
        "named": bool(told) and told[0][1] in fault.names,
        "noticed": bool(told),
        "delay": max(0, told[0][0] - seen) if told else None,
        "said": told[0][1] if told else "-",
    }


def gathered(results: Results, every: dict[str, Fault], seeds: int) -> tuple[list[dict[str, Any]], list[Twin], dict[str, Any]]:
    """(a row a fault, the twins, the figures)."""
    rows, delays, counts = [], [], {"named": 0, "noticed": 0, "runs": 0}
    for name, fault in every.items():
        runs = {seed: outcome for (one, seed), outcome in sorted(results.found.items()) if one == name}
        found = [judged(fault, outcome, results.found.get((twin(fault.base), seed))) for seed, outcome in runs.items()]
        if not found:
            continue
        mine = [one["delay"] for one in found if one["delay"] is not None]
        row: dict[str, Any] = {"fault": name, "says": fault.says, "runs": len(found)}
        row |= {kind: sum(one[kind] for one in found) for kind in ("named", "noticed")}
        row |= {"delay": statistics.median(mine) if mine else None, "said": list(dict.fromkeys(one["said"] for one in found))}
        rows.append(row)
        delays += mine
        counts = {kind: counts[kind] + row[kind] for kind in counts}
    twins = [(name, seed, one["told"]) for (name, seed), one in sorted(results.found.items()) if name.startswith("twin: ")]
    figures = {
        "faults": counts["runs"],
        "kinds": len(rows),
        "named": counts["named"] / max(counts["runs"], 1),
        "noticed": counts["noticed"] / max(counts["runs"], 1),
        "median_delay_steps": statistics.median(delays) if delays else None,
        "twins": len(twins),
        "twins_clean": sum(not told for _, _, told in twins) / max(len(twins), 1),
        "wanted": {"faults": seeds * len(every), "twins": seeds * len(BASES)},
        "versions": results.versions([*every, *map(twin, BASES.values())]),
    }
    return rows, twins, figures


def show(rows: list[dict[str, Any]], twins: list[Twin], figures: dict[str, Any]) -> None:
    """Print them."""
    print(f"{'fault':<36}{'named':>6}{'noticed':>9}{'delay':>7}  first finding")
    for row in rows:
        delay = "-" if row["delay"] is None else f"{row['delay']:.0f}"
        counts = f"{row['named']:>4}/{row['runs']}{row['noticed']:>7}/{row['runs']}"
        print(f"{row['fault']:<36}{counts}{delay:>7}  {', '.join(row['said'])}")
    for name, seed, told in twins:
        if told:
            print(f"{name}, seed {seed}: {told}")
    print(json.dumps(figures, indent=2))


def work(folder: Path, keys: list[Key], parallel: int) -> None:
    """Run them, so many processes at a time."""
    command = [sys.executable, str(HERE.with_name("worker.py")), str(folder), json.dumps(keys), str(parallel)]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="faults whose id holds these words; `twin` for the healthy runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/doctor-bench"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Write the table for docs/ here.")
    parser.add_argument("--pooled", action="store_true", help="Take results of other code, too.")
    parser.add_argument("--judge-only", action="store_true", help="Train nothing; judge what is there.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    every = faults()
    bases = {name: fault.base for name, fault in every.items()} | {twin(base): base for base in BASES.values()}
    results = Results(options.folder, version(), options.pooled)
    for code, count in results.others.items():
        print(f"{results.file}: {count} results of other code ({code}) are left out; --pooled takes them", file=sys.stderr)
    wanted = [
        (name, seed)
        for seed in range(options.seeds)
        for name in bases
        if not options.judge_only and (options.only is None or options.only in name) and (name, seed) not in results.found
    ]
    if wanted:
        work(options.folder, wanted, options.parallel)
    rows, twins, figures = gathered(results.reloaded(), every, options.seeds)
    show(rows, twins, figures)
    if options.page:
        options.page.write_text(page(rows, twins, figures), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
