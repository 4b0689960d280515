"""What parallel training costs beside the computation itself, on CPU processes over gloo.

Weak scaling, data parallel, 42 M parameters (stories42M: hidden 512, 8 layers, vocabulary 32,000, embeddings tied), fp32,
sequence 256, micro-batch 2: seconds a step of

    alone    one process, pinned to one core, nothing beside it
    apart    two such processes at once, each on a core of its own, that do not know of each other
    data 2   two processes that train together on twice the global batch

each with one thread, in turn (alone, apart, data 2, alone, ...), round by round. Efficiency is alone / data 2. What two cores
lose by sharing caches, memory and perhaps the arithmetic of one physical core shows in alone / apart: data 2 cannot beat that.
Gradients are reduced once a step, so that more micro-batches a step (accumulation) cost no more communication: measured with
one and with four; the figure of merit is that with four.

Overhead of data x tensor x pipeline = 2 x 2 x 2 with ZeRO 1, eight processes, a small shape: seconds a step, seconds of the same
collectives alone (recorded operator by operator in a step of each process, then repeated without the computation), and the
computation (one process on one core, divided by the cores that there are). What is left is overhead.

Usage: python benchmarks/parallel.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SEQUENCE, MICRO_BATCH = 256, 2
STEPS = {1: 4, 4: 3}
"""Micro-batches a step: steps, of which the first is not counted."""
SMALL = {"layers": 8, "hidden_size": 256, "ffn_size": 704, "heads": 8, "vocab_size": 8192}
SMALL_LENGTH, SMALL_BATCH, SMALL_STEPS = 128, 16, 6
CUBE = {"data": 2, "tensor": 2, "pipeline": 2, "zero_stage": 1}


def engine_of(model: dict[str, Any], length: int, global_batch: int, micro_batch: int, parallel: dict[str, int]) -> Any:
    from danlu import engines
    from danlu.recipe import parse, resolve_shape

    recipe = parse(
        {
            "name": "parallel",
            "model": model,
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": length},
            "train": {"steps": 1000, "global_batch": global_batch, "device": "cpu"},
            "parallel": parallel,
            "memory": {"micro_batch": micro_batch},
        }
    )
    engine = engines.create(recipe, resolve_shape(recipe, recipe.model.vocab_size))
    engine.initialise()
    return engine


def batch_of(engine: Any, length: int) -> Any:
    import torch

    recipe = engine.recipe
    size = (recipe.accumulation, recipe.micro_batch, length + 1)
    tokens = torch.randint(0, engine.shape.vocab_size, size, generator=torch.Generator().manual_seed(engine.data_rank))
    return {"inputs": tokens[..., :-1].contiguous(), "targets": tokens[..., 1:].contiguous()}


def seconds_of(engine: Any, batch: Any, steps: int) -> list[float]:
    """Of each step but the first; processes that train together begin each one at the same time."""
    found = []
    for _ in range(steps):
        engine.layout.barrier()
        begun = time.perf_counter()
        engine.train_step(batch, 1e-4)
        found.append(time.perf_counter() - begun)
    return found[1:]


def weak(data: int) -> dict[str, float]:
    """One process's share of a weak scaling measurement: seconds a step by micro-batches."""
    model = {"preset": "llama-42m", "vocab_size": 32000}
    engine = engine_of(model, SEQUENCE, max(STEPS) * MICRO_BATCH * data, MICRO_BATCH, {"data": data})
    batch = batch_of(engine, SEQUENCE)
    return {
        str(micro_batches): statistics.median(
            seconds_of(engine, {name: tensor[:micro_batches] for name, tensor in batch.items()}, steps)
        )
        for micro_batches, steps in STEPS.items()
    }


def cube(parallel: dict[str, int]) -> dict[str, float]:
    """One process's share of the 2 x 2 x 2 run, and its collectives alone; or one process that does all the work."""
    replicas = parallel.get("data", 1)
    engine = engine_of(SMALL, SMALL_LENGTH, SMALL_BATCH, SMALL_BATCH // 8, parallel)
    assert engine.recipe.accumulation * replicas == 8
    batch = batch_of(engine, SMALL_LENGTH)
    found = {"seconds": statistics.median(seconds_of(engine, batch, SMALL_STEPS))}
    if replicas > 1:
        recorder = recorder_of_collectives()
        with recorder:
            engine.train_step(batch, 1e-4)
        alone = []
        for _ in range(SMALL_STEPS):
            engine.layout.barrier()
            begun = time.perf_counter()
            recorder.repeat()
            alone.append(time.perf_counter() - begun)
        found |= {"collectives": statistics.median(alone[1:]), "bytes": recorder.bytes, "calls": len(recorder.calls)}
    return found


def recorder_of_collectives() -> Any:
    """A mode that notes each collective of this process with the sizes of its tensors, and can repeat them all."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[tuple[Any, Any, Any]] = []
            self.bytes = 0

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            namespace = function.namespace
            if namespace in ("c10d", "_c10d_functional") and "wait" not in str(function) and "barrier" not in str(function):
                self.calls.append((function, tree_map(self._like, arguments), named or {}))
            return function(*arguments, **(named or {}))

        def _like(self, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            self.bytes += value.nbytes
            return torch.zeros_like(value)

        def repeat(self) -> None:
            """Collectives one after the other; what is sent from stage to stage waits for nothing but its arrival."""
            under_way = []
            for function, arguments, named in self.calls:
                made = function(*arguments, **named)
                if function.namespace == "_c10d_functional":
                    for tensor in made if isinstance(made, list | tuple) else [made]:
                        torch.ops._c10d_functional.wait_tensor(tensor)
                    continue
                work = made[-1] if isinstance(made, tuple) else made
                if "send" in str(function) or "recv" in str(function):
                    under_way.append(work)
                else:
                    work.wait()
            for work in under_way:
                work.wait()

    return Recorder()


def processes(count: int, cores: list[int], together: bool, *arguments: str) -> list[dict[str, float]]:
    """Run this file in so many processes at once, process i pinned to cores[i mod n]; what each of them found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(count):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PIN": str(cores[rank % len(cores)])}
        if together:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, __file__, "--worker", *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    found = []
    for process in started:
        out, err = process.communicate()
        if process.returncode:
            for other in started:
                other.kill()
            sys.exit(f"{' '.join(arguments)} failed:\n{err[-3000:]}")
        found.append(json.loads(out.splitlines()[-1]))
    return found


def worker(kind: str, *arguments: str) -> None:
    os.sched_setaffinity(0, {int(os.environ["PIN"])})
    made = weak(int(arguments[0])) if kind == "weak" else cube(json.loads(arguments[0]))
    print(json.dumps(made))


def weak_scaling(rounds: int, cores: list[int]) -> dict[str, float]:
    """Medians over the rounds."""
    ratios: dict[tuple[int, str], list[float]] = {}
    for number in range(rounds):
        found = {
            "alone": processes(1, cores, False, "weak", "1"),
            "apart": processes(2, cores, False, "weak", "1"),
            "data 2": processes(2, cores, True, "weak", "2"),
        }
        for micro_batches in STEPS:
            slowest = {name: max(each[str(micro_batches)] for each in members) for name, members in found.items()}
            told = "   ".join(f"{name} {value:6.3f} s" for name, value in slowest.items())
            print(f"round {number + 1}  micro-batches a step: {micro_batches}   {told}", flush=True)
            for name in ("apart", "data 2"):
                ratios.setdefault((micro_batches, name), []).append(slowest["alone"] / slowest[name])
    middle = {key: statistics.median(values) for key, values in ratios.items()}
    return {
        "weak_scaling_efficiency_2": middle[4, "data 2"],
        "weak_scaling_bound_2": middle[4, "apart"],
        "weak_scaling_efficiency_2_no_accumulation": middle[1, "data 2"],
        "weak_scaling_bound_2_no_accumulation": middle[1, "apart"],
    }


def overhead(cores: list[int]) -> dict[str, float]:
    """Of the 2 x 2 x 2 run, in seconds a step."""
    alone = processes(1, cores, False, "cube", "{}")[0]["seconds"]
    found = processes(8, cores, True, "cube", json.dumps(CUBE))
    step, collectives = (max(each[name] for each in found) for name in ("seconds", "collectives"))
    computation = alone / min(8, len(cores))
    return {
        "cube_step_seconds": step,
        "cube_computation_seconds": computation,
        "cube_collectives_seconds": collectives,
        "cube_collectives_mib": max(each["bytes"] for each in found) / 2**20,
        "cube_collectives_calls": max(each["calls"] for each in found),
        "cube_overhead_seconds": step - computation - collectives,
        "cube_overhead_share": (step - computation - collectives) / step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed")
    result = weak_scaling(options.rounds, cores[:2]) | overhead(cores)
    for label, value in result.items():
        print(f"{label:<44} {value:,.3f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
