"""Python imports this at its start where a test has put this folder on the path: one rank then does what goes wrong on clusters.

DANLU_FAULT=<name>:<rank>[:<step>]; the product knows nothing of it.
"""

from __future__ import annotations

import importlib.abc
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any


def sleeps() -> None:
    time.sleep(1000)


def holds_the_interpreter() -> None:
    """One long operation in C that lets no other thread of Python run."""
    number = 10**9
    _ = 3**number


def raises() -> None:
    raise ValueError("planted on this rank alone")


def out_of_memory() -> None:
    import torch

    torch.empty(1 << 50)


def leaves() -> None:
    os._exit(5)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flips_a_bit(engine: Any) -> None:
    import torch

    name = next(name for name in engine.parameters if name.endswith(os.environ.get("DANLU_FAULT_PARAMETER", "norm.weight")))
    parameter = engine.parameters[name].detach()
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    local.view(torch.int32).view(-1)[0] ^= 1


def plant(engine_module: ModuleType) -> None:
    name, _, step = os.environ["DANLU_FAULT"].split(":")
    engine: Any = engine_module.TorchEngine  # type: ignore[attr-defined]
    honest_step, honest_check = engine.train_step, engine.replicas_differ
    steps = iter(range(1, 1 << 30))

    def train_step(self: Any, batch: Any, rate: float) -> Any:
        number = next(steps)
        if number == int(step):
            globals()[name](*([self] if name == "flips_a_bit" else []))
        return honest_step(self, batch, rate)

    def replicas_differ(self: Any) -> Any:
        if name == "flips_a_bit" and step == "0":
            flips_a_bit(self)
        return honest_check(self)

    engine.train_step, engine.replicas_differ = train_step, replicas_differ


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
