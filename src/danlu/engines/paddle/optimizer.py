"""AdamW with decoupled weight decay (Loshchilov & Hutter 2019), clipping by the global norm, and dynamic loss scaling."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from danlu.engines.base import LOSS_SCALE_OVERFLOW
from danlu.engines.paddle.pieces import turned
from danlu.engines.paddle.slices import Target, array_of, check_filled
from danlu.engines.paddle.snapshot import Lazy
from danlu.engines.stored import Stored
from danlu.recipe import Recipe

INITIAL_SCALE, GROWTH_STEPS = 2.0**16, 2000
_MOMENTS = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
"""What checkpoints call a moment (in PyTorch's words), and what paddle does."""
_STEP = "step"


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018): halved when a gradient overflows, doubled after 2,000 steps without."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.value = INITIAL_SCALE if enabled else 1.0
        self.good_steps = 0

    def update(self, overflowed: bool) -> None:
        """Learn from a step."""
        if not self.enabled:
            return
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.value /= 2
        elif self.good_steps == GROWTH_STEPS:
            self.value, self.good_steps = self.value * 2, 0


class Optimizer:
    """Turns the gradients of the parameters into an update, or says why it did not."""

    def __init__(self, parameters: Mapping[str, Tensor], recipe: Recipe, rates: Mapping[str, float]) -> None:
        """``rates`` are what each one's learning rate is multiplied by."""
        self.settings, self.parameters = recipe.train.optimizer, dict(parameters)
        groups: dict[Any, list[Tensor]] = defaultdict(list)
        for name, parameter in parameters.items():
            groups[parameter.ndim >= 2, rates[name]].append(parameter)
        self.groups = [
            # What decays a weight in a step is learning rate x weight decay, which is to be the same for all.
            {"params": group, "learning_rate": rate, "weight_decay": self.settings.weight_decay / rate if matrix else 0.0}
            for (matrix, rate), group in groups.items()
        ]
        self.steps = 0
        """Updates made."""
        self.adamw = self._fresh()
        self.scale = LossScale(recipe.train.precision == "fp16")

    def _fresh(self) -> Any:
        first, second = self.settings.betas
        return paddle.optimizer.AdamW(
            self.settings.learning_rate,
            beta1=first,
            beta2=second,
            epsilon=self.settings.epsilon,
            parameters=[dict(group) for group in self.groups],
        )

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 outside fp16."""
        return self.scale.value

    def step(self, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        """Unscale, clip by the global norm and update. Returns (norm before clipping, why nothing was updated or None).

        The gradients are freed in any case.
        """
        self.adamw.set_lr(learning_rate)
        norm = self._global_norm() / self.loss_scale
        skipped = None
        if loss_is_finite and math.isfinite(norm):
            clipping = self.settings.gradient_clipping
            factor = min(1.0, clipping / (norm + 1e-6)) if clipping > 0 else 1.0
            self._multiply_gradients(factor / self.loss_scale)
            self.adamw.step()
            self.steps += 1
        elif not loss_is_finite:
            skipped = "the loss is not finite"
        else:
            skipped = LOSS_SCALE_OVERFLOW if self.loss_scale > 1 else "the gradient is not finite"
        self.scale.update(skipped is not None)
        self.adamw.clear_grad(set_to_zero=False)
        return norm, skipped

    def _global_norm(self) -> float:
        squares = [paddle._C_ops.squared_l2_norm(grad) for grad in self._gradients()]
        return math.sqrt(paddle.add_n(squares).item())

    @paddle.no_grad()
    def _multiply_gradients(self, factor: float) -> None:
        if factor != 1.0:
            for grad in self._gradients():
                grad.scale_(factor)

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def moments(self, parameter: Tensor) -> list[Tensor]:
        """The two of a parameter, once there was a step."""
        state = self.adamw._accumulators
        return [state[ours][parameter.name] for ours in _MOMENTS.values()]

    def tensors(self) -> dict[str, Lazy]:
        """Moments and step counts of parameters, by ``<state>.<parameter name>``; none before the first step."""
        found: dict[str, Lazy] = {}
        if self.steps:
            for name, parameter in self.parameters.items():
                for key, moment in zip(_MOMENTS, self.moments(parameter), strict=True):
                    found[f"{key}.{name}"] = _lazy(name, moment)
                found[f"{_STEP}.{name}"] = _lazy_number(self.steps)
        return found

    def load_tensors(self, found: Iterable[Stored], folder: Path) -> None:
        """The reverse of ``tensors``, from any layout; without any, the optimizer has not made a step yet.

        UserError: a part of a tensor is in none of the files.
        """
        self.steps = 0
        targets: dict[str, Target] = {}
        for each in found:
            key, name = each.name.split(".", 1)
            if name not in self.parameters:
                continue
            if key == _STEP:
                self.steps = int(each.content[()])
                continue
            if each.name not in targets:
                targets[each.name] = Target(name, tuple(turned(name, np.empty(self.parameters[name].shape, np.bool_)).shape))
            targets[each.name].take(each)
        check_filled(targets.values(), folder)
        self.adamw = self._fresh()
        if not self.steps:
            return
        state: dict[str, Any] = {}
        for stored_as, target in targets.items():
            parameter, key = self.parameters[target.name], stored_as.split(".", 1)[0]
            state[f"{parameter.name}_{_MOMENTS[key]}_0"] = paddle.to_tensor(
                np.ascontiguousarray(turned(target.name, target.array))
            )
        for parameter in self.parameters.values():  # paddle keeps the powers that the next step divides by
            for number, beta in enumerate(self.settings.betas, 1):
                power = paddle.to_tensor([beta ** (self.steps + 1)], dtype="float32", place=paddle.CPUPlace())
                state[f"{parameter.name}_beta{number}_pow_acc_0"] = power
        self.adamw.set_state_dict(state)

    def state(self) -> dict[str, Any]:
        """The loss scaler's numbers (JSON)."""
        return {"scale": self.scale.value, "good_steps": self.scale.good_steps} if self.scale.enabled else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``; what was saved in another precision holds none, and the scale starts anew."""
        if state and self.scale.enabled:
            self.scale.value, self.scale.good_steps = state["scale"], state["good_steps"]


def _lazy_number(number: int) -> Lazy:
    return lambda: np.asarray(number, np.float32)


def _lazy(name: str, tensor: Tensor) -> Lazy:
    return lambda: array_of(name, tensor)
