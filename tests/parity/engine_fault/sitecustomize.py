"""Python imports this at its start where a test has put this folder on the path: paddle then multiplies every gradient of the
output embedding by 1.05; the product knows nothing of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from types import ModuleType
from typing import Any


def plant(loss: Any) -> None:
    honest = loss._with_gradients

    def wrong(*arguments: Any) -> Any:
        known = honest(*arguments)
        known.weight.scale_(1.05)
        return known

    loss._with_gradients = wrong


class _Planting(importlib.abc.MetaPathFinder):
    """Plants once the module has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "danlu.engines.paddle.loss":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        honest = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            honest(module)
            plant(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Planting())
