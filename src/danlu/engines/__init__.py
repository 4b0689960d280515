"""Engines: the same decoder, optimizer and checkpoints in one framework each. Only this file knows their names."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.engines.base import Engine, Gpus
from danlu.environment import Nodes, place
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

if TYPE_CHECKING:
    from danlu.engines.torch.meeting import Meeting


def check(recipe: Recipe) -> None:
    """UserError: the engine that the recipe names cannot run here. Imports no framework."""
    name = recipe.train.engine
    if importlib.util.find_spec(name) is None:
        raise UserError(f"train.engine: {name} is not installed; install it with: pip install 'danlu[{name},data]'")
    if name == "paddle":
        _check_paddle(recipe)


def _check_paddle(recipe: Recipe) -> None:
    """What the paddle engine has no part for."""
    train, memory = recipe.train, recipe.memory
    found = {
        f"parallel: {recipe.parallel.processes} processes": recipe.parallel.processes > 1,
        f"memory.offload_optimizer: {memory.offload_optimizer}": memory.offload_optimizer != "none",
        f"memory.offload_parameters: {memory.offload_parameters}": memory.offload_parameters != "none",
        "watch.memory: true": recipe.watch.memory,
        f"watch.profile: {recipe.watch.profile}": recipe.watch.profile is not None,
    }
    for field, there in found.items():
        if there:
            raise UserError(f"{field} is not part of the paddle engine yet; use train.engine=torch, or leave it out")
    if memory.recompute == "selective":
        raise UserError("memory.recompute: selective is not part of the paddle engine yet; use full, or train.engine=torch")
    if train.device == "cpu" and train.precision != "fp32":
        raise UserError(
            f"train.precision: {train.precision} has no matrix products in paddle on a CPU; use fp32, or train.engine=torch"
        )


def gpus() -> Gpus | None:
    """The GPUs of this machine; None without any, or without a framework that sees them."""
    if importlib.util.find_spec("torch") is None:
        return None
    from danlu.engines.torch.gpus import gpus

    return gpus()


def create(recipe: Recipe, shape: ModelShape, scratch: Path | None = None) -> Engine:
    """The engine that the recipe names, with its model built and no weights drawn yet. UserError: it cannot run here.

    ``scratch`` is a folder for what is offloaded to disk, unless the recipe names one.
    """
    check(recipe)
    if recipe.train.engine == "paddle":
        from danlu.engines.paddle.engine import PaddleEngine

        return PaddleEngine(recipe, shape)
    from danlu.engines.torch.engine import TorchEngine

    return TorchEngine(recipe, shape, scratch)


def meet(rank: int, processes: int) -> Meeting:
    """Where the processes of a layout meet before they train."""
    from danlu.engines.torch.in_flight import FLIGHT_RECORDER

    os.environ.setdefault(*FLIGHT_RECORDER)  # before torch is imported
    from danlu.engines.torch.meeting import Meeting

    return Meeting(rank, processes)


def in_flight() -> list[str]:
    """The collectives that this process has begun and not ended, as far as its framework knows them."""
    from danlu.engines.torch.in_flight import in_flight

    return in_flight()


def launch(recipe: Recipe, run: Path, logs: Path, place: Path, own: range, nodes: Nodes) -> None:
    """Train a run in this machine's ranks of its layout. DanluError: what ended the one that failed first."""
    check(recipe)
    from danlu.engines.torch.launch import launch as start

    start(run, logs, place, own, nodes)


def again(recipe: Recipe) -> bool:
    """Run this very command in the processes of a layout on this machine, and return True when they are done.

    False: the layout has one process, or this is one of several. DanluError: what ended the process that failed first.
    """
    if recipe.parallel.processes == 1:
        return False
    check(recipe)
    from danlu.engines.torch.again import again as start
    from danlu.parent import end_with_parent

    if place() is not None:
        end_with_parent()
        return False
    start(recipe.parallel.processes)
    return True
