"""Memory of plain FP32 data parallelism beside each technique, and the step time that each costs.

Two processes with one thread each. Two cases: one in which activations matter (5.9 M parameters, hidden 256, 6 layers, sequence
1,024, global batch 8) and one in which what is kept for the parameters does (llama-42m, sequence 64, global batch 4). Each line
trains in new processes: a first step, one that danlu's meter follows operator by operator, then some that are timed.

    peak        bytes of tensors at the fullest moment of the metered step, in the fuller of the two processes
    saving      1 - that / plain's
    resident    the most that the kernel counted for a process (VmHWM), less what it had before the model was there: with the
                allocator's holes and the pages of mapped files that were in use, and with all steps, not one
    step time   median of the timed steps / plain's

The columns between are what the peak consists of. Moments and parameters in mapped files are no part of it; `offloaded` has them.

Usage: python benchmarks/memory.py [--steps 2] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from danlu.watch.format import bytes_text

PROCESSES = 2
ACTIVATIONS, STATES = "activations matter", "states matter"
CASES: dict[str, dict[str, Any]] = {
    ACTIVATIONS: {
        "model": {
            "family": "llama",
            "layers": 6,
            "hidden_size": 256,
            "ffn_size": 704,
            "heads": 8,
            "vocab_size": 4096,
            "tied_embeddings": True,
        },
        "sequence_length": 1024,
        "global_batch": 8,
    },
    STATES: {"model": {"preset": "llama-42m", "vocab_size": 32000}, "sequence_length": 64, "global_batch": 4},
}
PLAIN, MIXED = "plain fp32", "bf16"
BF16 = {"precision": "bf16"}
ZERO_3, DISK, SHARDS = {"zero_stage": 3}, {"offload_optimizer": "disk"}, {"offload_parameters": "disk"}
TECHNIQUES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    ACTIVATIONS: {
        PLAIN: {},
        MIXED: {"train": BF16},
        "recompute selective": {"memory": {"recompute": "selective"}},
        "recompute full": {"memory": {"recompute": "full"}},
        "accumulation 4 x 1": {"memory": {"micro_batch": 1}},
        "bf16, selective": {"train": BF16, "memory": {"recompute": "selective"}},
        "bf16, full": {"train": BF16, "memory": {"recompute": "full"}},
        "bf16, 4 x 1": {"train": BF16, "memory": {"micro_batch": 1}},
        "bf16, 4 x 1, full, ZeRO 3, all on disk": {
            "train": BF16,
            "memory": {"micro_batch": 1, "recompute": "full", **DISK, **SHARDS},
            "parallel": ZERO_3,
        },
    },
    STATES: {
        PLAIN: {},
        "ZeRO 1": {"parallel": {"zero_stage": 1}},
        "ZeRO 2": {"parallel": {"zero_stage": 2}},
        "ZeRO 3": {"parallel": ZERO_3},
        "moments on disk": {"memory": DISK},
        "ZeRO 3, moments on disk": {"parallel": ZERO_3, "memory": DISK},
        "ZeRO 3, all on disk": {"parallel": ZERO_3, "memory": DISK | SHARDS},
    },
}


def recipe(case: str, name: str) -> Any:
    from danlu import recipe as recipes

    settings, changes = CASES[case], TECHNIQUES[case][name]
    train = {"steps": 10, "global_batch": settings["global_batch"], "device": "cpu"}
    return recipes.parse(
        {
            "name": "memory",
            "stages": ["train"],
            "model": settings["model"],
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": settings["sequence_length"]},
            "train": train | changes.get("train", {}),
            "parallel": {"data": PROCESSES, **changes.get("parallel", {})},
            "memory": changes.get("memory", {}),
        }
    )


def member(case: str, name: str, steps: int, folder: Path) -> None:
    """One of the processes of a line: what it measured, as JSON on the last line of its output."""
    import torch

    from danlu.engines.torch.engine import TorchEngine
    from danlu.engines.torch.trial import random_batch
    from danlu.recipe import resolve_shape
    from danlu.watch.probes import peak_resident_bytes

    torch.set_num_threads(1)
    settings = recipe(case, name)
    before = peak_resident_bytes()
    shape = resolve_shape(settings, None)
    engine = TorchEngine(settings, shape, folder)
    engine.initialise()
    batch = random_batch(settings, shape.vocab_size)
    engine.train_step(batch, 1e-4)
    found = engine.metered_step(batch, 1e-4)[1][engine.rank]
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.train_step(batch, 1e-4)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(found | {"seconds": statistics.median(seconds), "resident": peak_resident_bytes() - before}))


def measure(case: str, name: str, steps: int, folder: str) -> dict[str, Any]:
    """The line of the process with the larger peak."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1"}
    own = ["--member", case, name, "--steps", str(steps), "--folder", folder]
    command = [sys.executable, "-W", "ignore", __file__, *own]
    members = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    outputs = [each.communicate() for each in members]
    for each, (_, errors) in zip(members, outputs, strict=True):
        if each.returncode:
            sys.exit(f"{name} failed:\n{errors[-3000:]}")
    lines: list[dict[str, Any]] = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    return max(lines, key=lambda line: float(line["peak"]))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown, from figures by technique."""
    from danlu.engines.base import MEMORY_KINDS

    head = ["", "peak", "saving", *MEMORY_KINDS, "offloaded", "resident", "step time"]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for name, row in rows.items():
        kinds = [bytes_text(row[f"peak_{kind}"]) for kind in MEMORY_KINDS]
        sizes = [
            bytes_text(row["peak"]),
            f"{row['saving']:.1%}",
            *kinds,
            bytes_text(row["offloaded"]),
            bytes_text(row["resident"]),
        ]
        lines.append(" | ".join([name, *sizes, f"{row['step_time_ratio']:.2f}"]))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2, help="Timed steps.")
    parser.add_argument("--only", nargs="*", default=[], help="These lines, and plain.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--member", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        member(*arguments.member, arguments.steps, arguments.folder)
        return
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        for case, techniques in TECHNIQUES.items():
            names = [name for name in techniques if not arguments.only or name in (PLAIN, *arguments.only)]
            found[case] = {name: measure(case, name, arguments.steps, folder) for name in names}
            plain = found[case][PLAIN]
            for row in found[case].values():
                row |= {"saving": 1 - row["peak"] / plain["peak"], "step_time_ratio": row["seconds"] / plain["seconds"]}
            print(f"Where {case}:\n\n{table(found[case])}\n", flush=True)
    rows = found[ACTIVATIONS]
    best = max(rows, key=lambda name: float(rows[name]["saving"]))
    result = {
        "amp_saving": rows[MIXED]["saving"] if MIXED in rows else None,
        "best": best,
        "best_saving": rows[best]["saving"],
        "best_saving_step_time_ratio": rows[best]["step_time_ratio"],
    }
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result | {"rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
