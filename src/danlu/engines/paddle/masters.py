"""Level O2 of mixed precision (Micikevicius et al. 2018): the model computes in half precision with weights that are half too,
and the optimizer has FP32 masters of them, which checkpoints hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import paddle
from paddle import Tensor

from danlu.engines.paddle.decoder import CausalLM, RMSNorm


class Masters:
    """FP32 parameters, from which the model's come and to which their gradients go."""

    def __init__(self, stages: list[CausalLM], dtype: str) -> None:
        """Norms stay FP32. The masters are made first, since casting forgets digits."""
        parameters = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        self.own: dict[str, Tensor] = {name: _copy(parameter) for name, parameter in parameters.items()}
        paddle.amp.decorate(stages, level="O2", dtype=dtype, excluded_layers=[RMSNorm])
        self.model: Mapping[str, Tensor] = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}

    @paddle.no_grad()
    def take_gradients(self) -> None:
        """Of the backward pass that has ended."""
        for name, parameter in self.model.items():
            gradient = parameter.grad
            if gradient is None or not gradient._is_initialized():
                continue
            made, own = gradient.astype("float32"), self.own[name]
            own.grad = made if own.grad is None else own.grad.add_(made)
            parameter.clear_gradient(set_to_zero=False)

    @paddle.no_grad()
    def give_weights(self) -> None:
        """To the model, after the masters have changed."""
        for name, parameter in self.model.items():
            paddle.assign(self.own[name].astype(parameter.dtype), parameter)


def _copy(parameter: Tensor) -> Tensor:
    copy = paddle.create_parameter(parameter.shape, "float32", name=parameter.name + ".master")
    copy.set_value(parameter.astype("float32"))
    return copy
