"""Python imports this at its start where a test has put this folder on the path: something then goes wrong in a process.

DANLU_FAULT=<name>:<rank>:<step>, a rank of a layout that does what goes wrong on clusters; DANLU_FAULT=<name>; or
DANLU_FAULT=absent:<package>, which then cannot be found. The product knows nothing of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any


def sleeps() -> None:
    time.sleep(1000)


def raises() -> None:
    raise ValueError("planted on this rank alone")


def leaves() -> None:
    os._exit(5)


def before_a_step(fault: Callable[[], None], last: int, module: Any) -> None:
    """In the torch engine's module."""
    engine = module.TorchEngine
    honest = engine.train_step
    steps = iter(range(1, 1 << 30))

    def train_step(self: Any, batch: Any, rate: float) -> Any:
        if next(steps) == last:
            fault()
        return honest(self, batch, rate)

    engine.train_step = train_step


def head_gradient(module: Any) -> None:
    """In the paddle engine's loss: every gradient of the output embedding comes multiplied by 1.05."""
    honest = module._with_gradients

    def wrong(*arguments: Any) -> Any:
        known = honest(*arguments)
        known.weight.scale_(1.05)
        return known

    module._with_gradients = wrong


class _Planting(importlib.abc.MetaPathFinder):
    """Plants once the module has been imported, which takes seconds and is not wanted in other processes."""

    def __init__(self, module: str, plant: Callable[[ModuleType], None]) -> None:
        self.module, self.plant = module, plant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        honest = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            honest(module)
            self.plant(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


fault, _, where = os.environ.get("DANLU_FAULT", "").partition(":")
rank, _, step = where.partition(":")
if fault == "absent":
    sys.modules[where] = None  # type: ignore[assignment]
elif fault == head_gradient.__name__:
    sys.meta_path.insert(0, _Planting("danlu.engines.paddle.loss", head_gradient))
elif fault and rank == os.environ.get("RANK"):
    sys.meta_path.insert(0, _Planting("danlu.engines.torch.engine", partial(before_a_step, globals()[fault], int(step))))
