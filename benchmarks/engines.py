"""Training speed of both engines side by side, and paddle's static graph beside its dynamic one, in FP32 on the CPU.

The 42 M-parameter Llama shape, sequence 256, batch 4, AdamW and clipping, on random tokens in memory. Each contender runs in a
process of its own, in turn (A B C A B C ...); the medians of the rounds are compared round by round. With --operators paddle's
profiler prints the operators that the time goes to.

Usage: python benchmarks/engines.py [--rounds 3] [--steps 6] [--preset llama-42m] [--operators] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SEQUENCE, BATCH, WARM = 256, 4, 2
CONTENDERS = {"torch": ("torch", False), "paddle": ("paddle", False), "paddle static": ("paddle", True)}


def make(name: str, preset: str) -> tuple[Any, dict[str, Any]]:
    """The engine and a batch."""
    import numpy as np

    from danlu import engines
    from danlu.recipe import parse, resolve_shape

    framework, static = CONTENDERS[name]
    tree = {"name": "engines", "model": {"preset": preset}, "data": {"sources": [{"path": "x.txt"}], "sequence_length": SEQUENCE}}
    overrides = ["train.device=cpu", f"train.engine={framework}", f"train.compile={str(static).lower()}"]
    recipe = parse(tree, [*overrides, f"train.global_batch={BATCH}"])
    shape = resolve_shape(recipe, None)
    engine = engines.create(recipe, shape)
    engine.initialise()
    random = np.random.default_rng(0)
    batch = {key: random.integers(0, shape.vocab_size, (1, BATCH, SEQUENCE)) for key in ("inputs", "targets")}
    return engine, next(iter(engine.loader([batch], range(1), 1)))  # type: ignore[arg-type]


def work(name: str, preset: str, steps: int) -> list[float]:
    """Seconds of each step, the first ones left out."""
    engine, batch = make(name, preset)
    seconds = []
    for _ in range(WARM + steps):
        start = time.perf_counter()
        engine.train_step(batch, 1e-4)
        seconds.append(time.perf_counter() - start)
    return seconds[WARM:]


def operators(preset: str) -> None:
    """What paddle's profiler says of one step."""
    engine, batch = make("paddle", preset)
    engine.train_step(batch, 1e-4)
    import paddle.profiler as profiler

    with profiler.Profiler(targets=[profiler.ProfilerTarget.CPU]) as profile:
        engine.train_step(batch, 1e-4)
    profile.summary(sorted_by=profiler.SortedKeys.CPUTotal, op_detail=False)


def measure(rounds: int, steps: int, preset: str) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in CONTENDERS:
            command = [sys.executable, __file__, "--work", name, "--steps", str(steps), "--preset", preset]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            times[name].append(statistics.median(json.loads(output.splitlines()[-1])))
            print(f"round {number + 1}  {name:14} {times[name][-1]:.3f} s a step", flush=True)

    def ratio(slow: str, fast: str) -> float:
        return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))

    return {"paddle_to_torch_fp32": ratio("torch", "paddle"), "paddle_static_to_dynamic": ratio("paddle", "paddle static")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--preset", default="llama-42m")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(work(arguments.work, arguments.preset, arguments.steps)))
        return
    if arguments.operators:
        operators(arguments.preset)
        return
    figures = measure(arguments.rounds, arguments.steps, arguments.preset)
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
