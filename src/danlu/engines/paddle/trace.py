"""One step with everything kept that another engine can be held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from paddle import Tensor, nn

from danlu.engines.base import Arrays, Batch, StepResult, Trace
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.optimizer import Optimizer
from danlu.engines.paddle.slices import array_of


class Traced(Protocol):
    """What is known of an engine here."""

    parameters: dict[str, Tensor]
    optimizer: Optimizer

    @property
    def model(self) -> CausalLM: ...

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult: ...


def traced_step(engine: Traced, batch: Batch, learning_rate: float) -> tuple[StepResult, Trace]:
    """``train_step`` in one process, with the outputs of the first micro-batch, and gradients and updates of the whole batch."""
    outputs: Arrays = {}
    gradients: Arrays = {}
    before = {name: array_of(name, parameter) for name, parameter in engine.parameters.items()}

    def keep(name: str, _module: nn.Layer, _inputs: object, output: Any) -> None:
        if isinstance(output, Tensor) and name not in outputs:
            outputs[name] = output.detach().astype("float32").numpy()

    def keep_gradients(update: Callable[..., Any], *arguments: Any) -> Any:
        for name, parameter in reversed(engine.parameters.items()):
            if parameter.grad is not None:
                gradients[name] = array_of(name, parameter.grad)
        return update(*arguments)

    hooks = [module.register_forward_post_hook(partial(keep, name)) for name, module in engine.model.named_sublayers()]
    update = engine.optimizer.step
    setattr(engine.optimizer, "step", partial(keep_gradients, update))  # noqa: B010
    try:
        result = engine.train_step(batch, learning_rate)
    finally:
        setattr(engine.optimizer, "step", update)  # noqa: B010
        for hook in hooks:
            hook.remove()
    updates = {name: array_of(name, parameter) - before[name] for name, parameter in engine.parameters.items()}
    return result, Trace(outputs, gradients, updates)
