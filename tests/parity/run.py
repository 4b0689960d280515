"""The equality matrix: layouts and memory techniques against the one-process float32 run, on gloo processes of this machine.

    python tests/parity/run.py [--engine torch|paddle] [--quick] [--json FILE] [--only WORDS ...]

Prints a table and exits with 1 if a combination differs, a fault is not caught, or a checkpoint does not move. Processes are
forked from this one, which has the framework loaded already, and each lot of them works through many combinations.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cases
from cases import case_of

Job = tuple[str, str]
_WORKERS = {"torch": "worker", "paddle": "paddle_worker"}
PATIENCE_SECONDS = 300
"""Without an end of a combination, its processes are taken to hang."""


def launch(processes: int, jobs: list[Job], folder: Path, worker: Any) -> None:
    """Do jobs in this many new processes; returns when they have ended, or hang, or one has failed."""
    fork = multiprocessing.get_context("fork")
    port = folder / "port"
    port.unlink(missing_ok=True)

    def member(rank: int) -> None:
        if (folder / "quiet").exists():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the framework's warnings, from every process
        worker.work(rank, processes, folder, jobs, port)

    members = [fork.Process(target=member, args=(rank,)) for rank in range(processes)]
    for each in members:
        each.start()
    results, begun = folder / "results", time.time()
    while any(each.is_alive() for each in members):
        time.sleep(0.05)
        last = results.stat().st_mtime if results.exists() else begun
        if any(each.exitcode for each in members) or time.time() - last > PATIENCE_SECONDS:
            break
    for each in members:
        if each.is_alive():
            os.kill(each.pid or 0, signal.SIGKILL)
        each.join()


def run(jobs: list[Job], folder: Path, worker: Any) -> dict[Job, dict[str, Any]]:
    """All jobs, those of the same number of processes together. One that fails or hangs does not keep the next from its turn."""
    results: dict[Job, dict[str, Any]] = {}
    by_processes: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        by_processes[case_of(job, worker.FAULTS).processes].append(job)
    for processes, left in sorted(by_processes.items()):
        while left:
            (folder / "results").unlink(missing_ok=True)
            launch(processes, left, folder, worker)
            if not (folder / "results").exists():
                raise TimeoutError(f"{processes} processes did not come together")
            lines = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
            for line in lines:
                job = (str(line["kind"]), str(line["words"]))
                earlier = results.get(job, {})
                if "failed" not in earlier:  # the first to fail tells what happened; the others lost their connection
                    results[job] = line
            left = left[left.index((lines[-1]["kind"], lines[-1]["words"])) + 1 :]
    return results


def jobs_of(engine: str, faults: Mapping[str, Any], quick: bool, only: list[str]) -> list[list[Job]]:
    """Three lots, each of which needs the one before."""
    combinations, moves = cases.MATRICES[engine, "quick" if quick else "full"]
    compared: list[Job] = [("case", words) for words in combinations]
    compared += [("fault", name) for name in faults]
    loads: list[Job] = [("load", f"{source} -> {target}") for source, target in moves]
    if only:
        others = [words for words in only if " -> " not in words and words not in faults]
        compared = [("case", words) for words in others] + [job for job in compared if job[0] == "fault" and job[1] in only]
        loads = [("load", words) for words in only if " -> " in words]
    saves: list[Job] = [("save", words) for words in dict.fromkeys(job[1].split(" -> ")[0] for job in loads)]
    references: list[Job] = [("reference", case_of(job, faults).reference) for job in [*compared, *loads]]
    return [list(dict.fromkeys(references)), [*compared, *saves], loads]


def _caught(fault: dict[str, Any]) -> bool:
    """By a difference: a process that fails would be noticed anyway, and says nothing about the comparison."""
    return bool(fault.get("done")) and not fault["good"]


def table(results: dict[Job, dict[str, Any]], faults: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = ["| Combination | Processes | Loss | Gradient norm | Weights | |", "|---|---|---|---|---|---|"]
    for (kind, words), result in results.items():
        if kind in ("case", "load"):
            errors = result.get("done", {})
            figures = " | ".join(f"{errors[name]:.0e}" if name in errors else "" for name in ("loss", "norm", "weights"))
            said = "equal" if result.get("good") else "FAILED"
            said += ", same bits" if errors.get("same_bits") else ""
            said += ", same tokens" if errors.get("same_tokens") else ""
            lines.append(f"| `{words}` | {case_of((kind, words), faults).processes} | {figures} | {said} |")
    lines += ["", "| Planted fault | In | |", "|---|---|---|"]
    for (kind, words), result in results.items():
        if kind == "fault":
            errors = result.get("done", {})
            worst = max(("loss", "norm", "weights"), key=lambda name: errors.get(name, 0))
            off = f"{worst} off by {errors[worst]:.0e}" if errors.get(worst, 0) > 1e-4 else "other tokens"
            how = f"caught: {off}" if _caught(result) else "NOT CAUGHT"
            lines.append(f"| {words} | `{faults[words][0]}` | {how} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(_WORKERS), default="torch")
    parser.add_argument("--quick", action="store_true", help="A dozen combinations on four processes.")
    parser.add_argument("--json", type=Path, help="Write the figures there.")
    parser.add_argument("--only", nargs="*", default=[], help="These combinations, moves or faults; any words will do.")
    options = parser.parse_args()
    worker = importlib.import_module(_WORKERS[options.engine])
    results: dict[Job, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "quiet").touch()
        for lot in jobs_of(options.engine, worker.FAULTS, options.quick, options.only):
            results |= run(lot, Path(folder), worker)
    print(table(results, worker.FAULTS))
    compared = {job: result for job, result in results.items() if job[0] in ("case", "load")}
    failed = [" ".join(job) for job, result in results.items() if job[0] != "fault" and not result.get("good")]
    planted = [result for job, result in results.items() if job[0] == "fault"]
    for name in failed:
        kind, _, words = name.partition(" ")
        print(f"{name}: {results[kind, words].get('failed', results[kind, words].get('done', 'hangs'))}", file=sys.stderr)
    figures = {
        "combinations": len(compared),
        "failed": len(failed),
        "faults_planted": len(planted),
        "faults_caught": sum(map(_caught, planted)),
    }
    print(json.dumps(figures))
    if options.json:
        details = {" ".join(job): result for job, result in results.items()}
        options.json.write_text(json.dumps(figures | {"results": details}, indent=2) + "\n")
    return 1 if failed or figures["faults_caught"] < len(planted) else 0


if __name__ == "__main__":
    sys.exit(main())
