"""One step with everything kept that another engine can be held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from danlu.engines.base import Arrays, Batch, StepResult, Trace
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.optimizer import Optimizer


class Traced(Protocol):
    """What is known of an engine here."""

    own: dict[str, nn.Parameter]
    optimizer: Optimizer

    @property
    def model(self) -> CausalLM: ...

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult: ...


def traced_step(engine: Traced, batch: Batch, learning_rate: float) -> tuple[StepResult, Trace]:
    """``train_step`` in one process, with the outputs of the first micro-batch, and gradients and updates of the whole batch."""
    outputs: Arrays = {}
    gradients: Arrays = {}
    before = {name: parameter.detach().clone() for name, parameter in engine.own.items()}

    def keep(name: str, _module: nn.Module, _inputs: object, output: Any) -> None:
        if isinstance(output, Tensor) and name and name not in outputs:
            outputs[name] = _array(output)

    def keep_gradients(update: Callable[..., Any], *arguments: Any) -> Any:
        for name, parameter in reversed(engine.own.items()):
            if parameter.grad is not None:
                gradients[name] = _array(parameter.grad)
        return update(*arguments)

    hooks = [module.register_forward_hook(partial(keep, name)) for name, module in engine.model.named_modules()]
    update = engine.optimizer.step
    setattr(engine.optimizer, "step", partial(keep_gradients, update))  # noqa: B010
    try:
        result = engine.train_step(batch, learning_rate)
    finally:
        setattr(engine.optimizer, "step", update)  # noqa: B010
        for hook in hooks:
            hook.remove()
    updates = {name: _array(parameter - before[name]) for name, parameter in engine.own.items()}
    return result, Trace(outputs, gradients, updates)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy().copy()
