"""What a step costs when there is nothing to compute: calls, hooks and empty messages, in every kind of layout."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.measure.clock import Clock
from danlu.engines.torch.measure.operators import DTYPES
from danlu.engines.torch.trial import random_batch
from danlu.recipe import Recipe, parse, resolve_shape

BUDGET = 0.25
"""Seconds spent on each figure."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "data": {"data": 0},
    "sharded": {"data": 0, "zero_stage": 3},
    "tensor": {"tensor": 0},
    "pipeline": {"pipeline": 0},
}
"""0 stands for all processes."""


def fixed(device: str) -> dict[str, dict[str, dict[str, float]]]:
    """The terms of ``plan.measured.Fixed`` for the layouts of the processes that there are; one is alone."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        return {"alone": {precision: _terms(device, precision, {}, 1) for precision in DTYPES}}
    found = {}
    for name, settings in LAYOUTS.items():
        parallel = {key: value or processes for key, value in settings.items()}
        stages = processes if name == "pipeline" else 1
        found[name] = {precision: _terms(device, precision, parallel, stages) for precision in DTYPES}
    return found


def _terms(device: str, precision: str, parallel: dict[str, int], stages: int) -> dict[str, float]:
    """From four steps: with few and more layers, with few and more micro-batches."""
    layers, more = 1, 4
    some, many = stages, 3 * stages
    few, deep, long, both = (
        _seconds(device, precision, parallel, per_stage * stages, micro_batches)
        for micro_batches, per_stage in ((some, layers), (some, more), (many, layers), (many, more))
    )
    layer = max(0.0, (both - deep - long + few) / ((more - layers) * (many - some)))
    step_layer = max(0.0, (deep - few) / (more - layers) - some * layer)
    micro_batch = max(0.0, (long - few) / (many - some) - layers * layer)
    step = max(0.0, few - layers * step_layer - some * (micro_batch + layers * layer))
    return {"step": step, "step_layer": step_layer, "micro_batch": micro_batch, "layer": layer}


def _seconds(device: str, precision: str, parallel: dict[str, int], layers: int, micro_batches: int) -> float:
    data = parallel.get("data", 1)
    recipe = parse(
        {
            "name": "fixed",
            "stages": ["train"],
            "model": {
                "family": "llama",
                "layers": layers,
                "hidden_size": 32,
                "ffn_size": 64,
                "heads": 8,
                "vocab_size": 64,
                "tied_embeddings": False,
            },
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 16},
            "train": {"steps": 10, "global_batch": micro_batches * data, "device": device, "precision": precision},
            "parallel": parallel,
            "memory": {"micro_batch": 1},
        }
    )
    return step_seconds(recipe, BUDGET)


def step_seconds(recipe: Recipe, budget: float) -> float:
    """The quickest of several steps of a recipe's model on random tokens; of several processes the slowest one's."""
    shape = resolve_shape(recipe, None)
    engine = TorchEngine(recipe, shape)
    engine.initialise()
    batch = random_batch(recipe, shape.vocab_size)

    def step() -> None:
        engine.train_step(batch, 1e-9)

    clock = Clock(engine._device)
    if not dist.is_initialized():
        return clock.least(step, budget, cold=False)
    return clock.together(step)
