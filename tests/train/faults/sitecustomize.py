"""Python imports this at its start where a test has put this folder on the path: one rank then does what goes wrong on clusters.

DANLU_FAULT=<name>:<rank>:<step>; the product knows nothing of it.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import time
from types import ModuleType
from typing import Any


def sleeps() -> None:
    time.sleep(1000)


def raises() -> None:
    raise ValueError("planted on this rank alone")


def leaves() -> None:
    os._exit(5)


def plant(engine_module: ModuleType) -> None:
    name, _, step = os.environ["DANLU_FAULT"].split(":")
    engine: Any = engine_module.TorchEngine  # type: ignore[attr-defined]
    honest = engine.train_step
    steps = iter(range(1, 1 << 30))

    def train_step(self: Any, batch: Any, rate: float) -> Any:
        number = next(steps)
        if number == int(step):
            globals()[name]()
        return honest(self, batch, rate)

    engine.train_step = train_step


class _Planting(importlib.abc.MetaPathFinder):
    """Plants once the engine's module has been imported, which takes seconds and is not wanted in other processes."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "danlu.engines.torch.engine":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        honest = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            honest(module)
            plant(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("DANLU_FAULT", "::").split(":")[1] == os.environ.get("RANK"):
    sys.meta_path.insert(0, _Planting())
