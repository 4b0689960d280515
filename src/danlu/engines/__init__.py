"""Engines: the same decoder, optimizer and checkpoints in one framework each. Only this file knows their names."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from danlu.engines.base import Engine
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe


def check(recipe: Recipe) -> None:
    """UserError: the engine that the recipe names cannot run here. Imports no framework."""
    name = recipe.train.engine
    if name == "paddle":
        raise UserError("train.engine: paddle is not part of this version; use train.engine=torch")
    if importlib.util.find_spec("torch") is None:
        raise UserError("train.engine: torch is not installed; install it with: pip install 'danlu[torch,data]'")


def create(recipe: Recipe, shape: ModelShape) -> Engine:
    """The engine that the recipe names, with its model built and no weights drawn yet. UserError: it cannot run here."""
    check(recipe)
    from danlu.engines.torch.engine import TorchEngine

    return TorchEngine(recipe, shape)


def is_worker() -> bool:
    """Whether a launcher has started this process as one of several (torchrun's variables)."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launch(recipe: Recipe, run: Path) -> None:
    """Train a run in the processes of its layout, started on this machine. DanluError: what ended the one that failed first."""
    check(recipe)
    from danlu.engines.torch.launch import launch as start

    start(recipe.parallel.processes, run)
