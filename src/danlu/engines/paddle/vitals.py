"""A few weights of every parameter, and the optimizer's settings in force."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
from paddle import Tensor

from danlu.engines.base import SAMPLED
from danlu.engines.paddle.optimizer import Optimizer


@paddle.no_grad()
def samples(parameters: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Up to SAMPLED weights of each parameter, evenly spread, always the same ones."""
    return {name: _spread(parameter).numpy() for name, parameter in parameters.items()}


def _spread(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape([-1])
    # An odd stride does not stay in one column of a matrix whose width is a power of two.
    stride = max(1, flat.shape[0] // SAMPLED) | 1
    return flat[::stride][:SAMPLED].astype("float32")


def settings(optimizer: Optimizer) -> dict[str, float]:
    """See ``danlu.engines.base.Vitals``."""
    adamw, groups = optimizer.adamw, optimizer.adamw._param_groups
    held = {parameter.name for group in groups for parameter in group["params"]}
    vectors = [group for group in groups if group["params"][0].ndim < 2]
    matrix = next((group for group in groups if group["params"][0].ndim >= 2), groups[0])
    parameters = optimizer.parameters.values()
    return {
        "learning_rate": adamw.get_lr(),
        "beta1": adamw._beta1,
        "beta2": adamw._beta2,
        "epsilon": adamw._epsilon,
        "weight_decay": matrix["weight_decay"] * matrix["learning_rate"],
        "decayed_vectors": sum(len(group["params"]) for group in vectors if group["weight_decay"]),
        "left_out": sum(each.name not in held or each.stop_gradient for each in parameters),
        "kept_gradients": sum(each.grad is not None for each in parameters),
        "updates": float(optimizer.steps),
    }
