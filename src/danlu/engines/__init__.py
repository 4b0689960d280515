"""Engines: the same decoder, optimizer and checkpoints in one framework each. Only this file knows their names."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from danlu.engines.base import Engine, Gpus
from danlu.engines.meeting import Meeting
from danlu.environment import Nodes, place
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, offered


def check(recipe: Recipe) -> None:
    """UserError: the engine that the recipe names cannot run here. Imports no framework."""
    name = recipe.train.engine
    if importlib.util.find_spec(name) is None:
        raise UserError(f"train.engine: {name} is not installed; install it with: pip install 'danlu[{name},data]'")
    offered.check(recipe)


def version(recipe: Recipe) -> str:
    """Of the framework that the recipe names, whichever of its packages is installed; without importing it."""
    package = metadata.packages_distributions()[recipe.train.engine][0]
    return metadata.version(package)


def gpus(engine: str) -> Gpus | None:
    """The GPUs of this machine, as an engine sees them; None without any, or without the engine."""
    if importlib.util.find_spec(engine) is None:
        return None
    if engine == "paddle":
        from danlu.engines.paddle.gpus import gpus as paddles

        return paddles()
    from danlu.engines.torch.gpus import gpus as torches

    return torches()


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


def create_mistaken(recipe: Recipe, shape: ModelShape, mistake: str) -> Engine:
    """The torch engine with a mistake in it that the doctor is to find. UserError: it cannot run here."""
    check(recipe)
    from danlu.engines.torch.mistakes import MISTAKES

    return MISTAKES[mistake](recipe, shape)


def meet(recipe: Recipe, rank: int, processes: int) -> Meeting:
    """Where the processes of a layout meet before they train."""
    if recipe.train.engine == "paddle":
        from danlu.engines.paddle.meeting import store as paddles

        return Meeting(rank, processes, paddles())
    from danlu.engines.torch.in_flight import FLIGHT_RECORDER

    os.environ.setdefault(*FLIGHT_RECORDER)  # before torch is imported
    from danlu.engines.torch.meeting import store

    return Meeting(rank, processes, store())


def in_flight(recipe: Recipe) -> Callable[[], list[str]]:
    """What names the collectives that this process has begun and not ended, as far as its framework knows them."""
    if recipe.train.engine == "paddle":
        return list
    from danlu.engines.torch.in_flight import in_flight

    return in_flight


def launch(recipe: Recipe, run: Path, logs: Path, place: Path, own: range, nodes: Nodes) -> None:
    """Train a run in this machine's ranks of its layout. DanluError: what ended the one that failed first."""
    check(recipe)
    if recipe.train.engine == "paddle":
        from danlu.engines.processes import launch as start_all

        start_all(recipe.parallel.processes, run, logs, place, own, nodes)
        return
    from danlu.engines.torch.launch import launch as start

    start(run, logs, place, own, nodes)


def again(recipe: Recipe) -> bool:
    """Run this very command in the processes of a layout on this machine, and return True when they are done.

    False: the layout has one process, or this is one of several. DanluError: what ended the process that failed first.
    """
    if recipe.parallel.processes == 1:
        return False
    check(recipe)
    from danlu.parent import end_with_parent

    if place() is not None:
        end_with_parent()
        return False
    if recipe.train.engine == "paddle":
        from danlu.engines.processes import again as start_all

        start_all(recipe.parallel.processes)
        return True
    from danlu.engines.torch.again import again as start

    start(recipe.parallel.processes)
    return True
