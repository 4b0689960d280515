"""One of the processes of a measurement, with torchrun's variables around it: prints a ``plan.measured.Share`` as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from danlu.engines import whole_step
from danlu.engines.torch.measure.clock import Clock
from danlu.engines.torch.measure.collectives import collectives
from danlu.engines.torch.measure.fixed import fixed, step_seconds
from danlu.engines.torch.measure.operators import DTYPES, attention, matmul, operators
from danlu.engines.torch.process import keep_freed_memory

WHOLE_SECONDS = 2.0
"""Spent on whole steps of a model, for each precision."""


def measured(device: torch.device) -> dict[str, Any]:
    """All figures of this process, while the others take theirs."""
    clock = Clock(device)
    # Twice, with some time between: what disturbs one measurement has mostly passed at the other.
    found: dict[str, Any] = least(_curves(clock), _curves(clock)) | {"collectives": {}}
    if dist.is_initialized():
        found["collectives"] = collectives(clock)
    found["fixed"] = fixed(device.type)
    processes = dist.get_world_size() if dist.is_initialized() else 1
    recipes = {precision: whole_step.recipe(device.type, precision, processes) for precision in DTYPES}
    found["whole"] = {precision: step_seconds(recipe, WHOLE_SECONDS) for precision, recipe in recipes.items()}
    return found


def _curves(clock: Clock) -> dict[str, Any]:
    """Of what a process computes, by kind and precision."""
    found: dict[str, Any] = {"matmul": {}, "attention": {}, "operators": {}}
    for precision in DTYPES:
        _together()
        found["matmul"][precision] = matmul(clock, precision)
        found["attention"][precision] = attention(clock, precision)
        for name, curves in operators(clock, precision).items():
            found["operators"].setdefault(name, {})[precision] = curves
    return found


def least(one: Any, other: Any) -> Any:
    """The quicker of two measurements of the same curves, point by point."""
    if isinstance(one, dict):
        return {name: least(value, other[name]) for name, value in one.items()}
    return [(size, min(seconds, again)) for (size, seconds), (_, again) in zip(one, other, strict=True)]


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()


def main() -> None:
    """The command line: cpu or cuda."""
    processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device(sys.argv[1])
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    if processes > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    found = measured(device) | {"processes": processes, "threads": torch.get_num_threads()}
    if rank == 0:
        print(json.dumps(found))
    if processes > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
