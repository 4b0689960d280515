"""How long the planner searches: every layout and technique, from a cold process, one core.

    405 B  Llama 3.1 405B on 16,384 H100, 2,048 samples of 8,192 tokens a step
    8 B    Llama 3.1 8B on 8 H100, 128 samples of 8,192 tokens a step

Usage: python benchmarks/plan_search.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

CASES = {
    "seconds_405b_16384": ("llama-3.1-405b", 16384, 2048),
    "seconds_8b_8": ("llama-3.1-8b", 8, 128),
}
PROGRAM = """
import sys, time
from danlu.plan.hardware import load
from danlu.plan.outcome import plan
from danlu.plan.target import Given, target
name, devices, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
begin = time.perf_counter()
request, _ = target(name, (), Given(sequence=8192, global_batch=batch, tokens=15e12))
answer = plan(request, load("h100-80gb"), devices)
seconds = time.perf_counter() - begin
assert answer.chosen is not None
print(seconds, answer.found.considered)
"""


def measure(name: str, devices: int, batch: int) -> tuple[float, int]:
    """Seconds of the search in a new process, and how many layouts and micro-batches it looked at."""
    command = [sys.executable, "-c", PROGRAM, name, str(devices), str(batch)]
    seconds, considered = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(considered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    for key, case in CASES.items():
        rounds = [measure(*case) for _ in range(options.rounds)]
        figures[key] = statistics.median(seconds for seconds, _ in rounds)
        print(f"{case[0]} on {case[1]:,} devices: {figures[key]:.2f} s, {rounds[0][1]:,} layouts and micro-batches")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
