"""The planner beside danlu's own runs on this machine's CPU: memory against the meter, step time against the clock.

Each row is a small model in a layout of one or two processes, each with its share of the cores. The planner predicts from a
hardware file that `danlu hardware measure` wrote (`--hardware`), or that is measured first. Memory is that of the fuller process:
bytes of tensors at the fullest moment of a step, as danlu's meter counts them; the planner's is its estimate without what is no
tensor. Seconds are those of the quickest of some steps, over rounds that go through all rows in turn, since what else the machine
does only ever makes a step longer; of one process with one thread they are its CPU time.
On a machine that does other things --cpu-time takes CPU time in all rows, of one thread a process: it leaves out what one waits.

Usage: python benchmarks/plan_cpu.py [--hardware FILE] [--rounds 2] [--only TEXT] [--cpu-time] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 4
BASE = {"layers": 4, "hidden_size": 256, "ffn_size": 704, "heads": 4, "vocab_size": 4096, "tied_embeddings": False}
LONG, BATCH = 256, 4
BF16, ACCUMULATED = {"precision": "bf16"}, {"micro_batch": 1}
TWO, TENSOR, PIPED = {"data": 2}, {"tensor": 2}, {"pipeline": 2}
ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"train": BF16},
    "wide": {"model": {"hidden_size": 512, "ffn_size": 1408, "heads": 8}},
    "wide bf16": {"model": {"hidden_size": 512, "ffn_size": 1408, "heads": 8}, "train": BF16},
    "deep": {"model": {"layers": 10}},
    "long": {"length": 1024, "batch": 1},
    "long bf16": {"length": 1024, "batch": 1, "train": BF16},
    "vocabulary": {"model": {"vocab_size": 24000}, "batch": 2},
    "tied": {"model": {"tied_embeddings": True, "vocab_size": 16000}, "batch": 2},
    "few heads": {"model": {"kv_heads": 1}},
    "accumulation": {"memory": ACCUMULATED},
    "accumulation bf16": {"memory": ACCUMULATED, "train": BF16},
    "recompute full": {"memory": {"recompute": "full"}},
    "recompute full bf16": {"memory": {"recompute": "full"}, "train": BF16},
    "recompute selective": {"memory": {"recompute": "selective"}},
    "recompute every 2": {"memory": {"recompute": "full", "recompute_every": 2}},
    "data 2": {"parallel": TWO},
    "data 2, accumulation": {"parallel": TWO, "memory": ACCUMULATED, "batch": 8},
    "data 2, bf16": {"parallel": TWO, "train": BF16},
    "ZeRO 1": {"parallel": TWO | {"zero_stage": 1}},
    "ZeRO 2, accumulation": {"parallel": TWO | {"zero_stage": 2}, "memory": ACCUMULATED},
    "ZeRO 3": {"parallel": TWO | {"zero_stage": 3}},
    "ZeRO 3, recompute full": {"parallel": TWO | {"zero_stage": 3}, "memory": {"recompute": "full"}},
    "tensor 2": {"parallel": TENSOR},
    "tensor 2, sequence": {"parallel": TENSOR | {"sequence_parallel": True}},
    "pipeline 2": {"parallel": PIPED, "memory": ACCUMULATED},
    "pipeline 2, interleaved": {"parallel": PIPED | {"schedule": "interleaved"}, "memory": ACCUMULATED},
}


def recipe(name: str) -> Any:
    from danlu.recipe import parse

    row = ROWS[name]
    return parse(
        {
            "name": "plan-cpu",
            "stages": ["train"],
            "model": {"family": "llama", **BASE, **row.get("model", {})},
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": row.get("length", LONG)},
            "train": {"steps": 10, "global_batch": row.get("batch", BATCH), "device": "cpu", **row.get("train", {})},
            "parallel": row.get("parallel", {}),
            "memory": row.get("memory", {}),
        }
    )


def member(names: list[str], cpu_time: bool, folder: Path) -> None:
    """One of the processes: the first prints what all measured, a JSON line a row."""
    import torch

    from danlu.engines.torch.engine import TorchEngine
    from danlu.engines.torch.trial import random_batch
    from danlu.recipe import resolve_shape

    for name in names:
        settings = recipe(name)
        shape = resolve_shape(settings, None)
        engine = TorchEngine(settings, shape, folder)
        engine.initialise()
        batch = random_batch(settings, shape.vocab_size)
        engine.train_step(batch, 1e-4)
        meter = engine.metered_step(batch, 1e-4)[1]
        fullest = max(meter, key=lambda each: each["peak"])
        alone = engine.layout.mesh is None and torch.get_num_threads() == 1
        now = time.process_time if alone or cpu_time else time.perf_counter
        seconds = []
        for _ in range(STEPS):
            engine.layout.barrier()
            begun = now()
            engine.train_step(batch, 1e-4)
            seconds.append(now() - begun)
        slowest = max(map(min, engine.gather(seconds)))
        if engine.rank == 0:
            print(json.dumps({"row": name, "seconds": slowest, "memory": fullest["peak"], "meter": fullest}), flush=True)


def measure(rounds: int, only: str, cpu_time: bool = False) -> dict[str, dict[str, Any]]:
    """By row: the quickest of all rounds."""
    from danlu.measure import processes

    found: dict[str, dict[str, Any]] = {}
    names = [name for name in ROWS if only in name]
    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        for _ in range(rounds):
            for count in (1, 2):
                mine = [name for name in names if recipe(name).parallel.processes == count]
                if not mine:
                    continue
                arguments = [__file__, "--member", *mine, "--folder", folder, *(["--cpu-time"] if cpu_time else [])]
                for line in processes(arguments, count).splitlines():
                    row = json.loads(line)
                    before = found.get(row["row"], row)
                    found[row["row"]] = row | {"seconds": min(row["seconds"], before["seconds"])}
    return found


def rows(hardware: str | None = None, rounds: int = 2, only: str = "", cpu_time: bool = False) -> list[dict[str, Any]]:
    """Predicted beside measured, a dictionary a row; errors are predicted / measured - 1."""
    from danlu import measure as machine
    from danlu.plan.hardware import load
    from danlu.plan.memory import memory
    from danlu.plan.request import own_layout
    from danlu.plan.step_time import step_time
    from danlu.recipe import resolve_shape

    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        if hardware is None:
            hardware = str(Path(folder) / "measured.yaml")
            machine.write(machine.measure("cpu", (1, 2)), Path(hardware))
        device = load(hardware)
    found = []
    for name, row in measure(rounds, only, cpu_time).items():
        settings = recipe(name)
        job = own_layout(settings, resolve_shape(settings, None))
        planned = max(stage.estimate - stage.overhead for stage in memory(job, device).stages)
        seconds = step_time(job, device).seconds
        found.append(
            {
                "row": name,
                "memory": row["memory"],
                "planned_memory": planned,
                "memory_error": planned / row["memory"] - 1,
                "seconds": row["seconds"],
                "planned_seconds": seconds,
                "seconds_error": seconds / row["seconds"] - 1,
                "meter": row["meter"],
            }
        )
    return found


def worst(found: list[dict[str, Any]]) -> dict[str, float]:
    """The largest errors of all rows, without their signs."""
    return {
        "cpu_memory_worst": max(abs(row["memory_error"]) for row in found),
        "cpu_step_worst": max(abs(row["seconds_error"]) for row in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", help="What `danlu hardware measure` wrote.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="Rows whose name has this in it.")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--member", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        member(arguments.member, arguments.cpu_time, arguments.folder)
        return
    if arguments.cpu_time:  # threads of one process that wait for each other use it up, too
        os.environ["OMP_NUM_THREADS"] = "1"
    found = rows(arguments.hardware, arguments.rounds, arguments.only, arguments.cpu_time)
    print("| row | MB planned | measured | error | ms planned | measured | error |\n" + "|---" * 7 + "|")
    for row in found:
        print(
            f"| {row['row']} | {row['planned_memory'] / 1e6:.1f} | {row['memory'] / 1e6:.1f} | {row['memory_error']:+.1%} "
            f"| {row['planned_seconds'] * 1e3:.1f} | {row['seconds'] * 1e3:.1f} | {row['seconds_error']:+.1%} |"
        )
    result = worst(found)
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result | {"rows": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
