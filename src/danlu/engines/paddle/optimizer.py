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
from paddle.utils import unique_name

from danlu.engines.loss_scale import LossScale
from danlu.engines.paddle.fully_sharded import free_gradient, gradient, kept_name
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.shard import Reducer
from danlu.engines.paddle.slices import Slice, Target, check_filled, held_region, placed, written, written_number
from danlu.engines.stored import Stored
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.recipe import Recipe

_MOMENTS = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
"""What checkpoints call a moment (in PyTorch's words), and what paddle does."""
_STEP = "step"


class Optimizer:
    """Turns the gradients of a process's parameters into an update, or says why it did not.

    Every decision rests on the global norm and the global loss, so that all processes of a layout take the same one.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], recipe: Recipe, rates: Mapping[str, float], layout: Layout, tied: bool
    ) -> None:
        """``rates`` are what each one's learning rate is multiplied by; ``tied``: the output embedding is the input's."""
        self.tied = tied
        self.settings, self.parameters, self.layout = recipe.train.optimizer, dict(parameters), layout
        groups: dict[Any, list[Tensor]] = defaultdict(list)
        for name, parameter in parameters.items():
            groups[parameter.ndim >= 2, rates[name]].append(parameter)
        self.groups: list[dict[str, Any]] = [
            # What decays a weight in a step is learning rate x weight decay, which is to be the same for all.
            {"params": group, "learning_rate": rate, "weight_decay": self.settings.weight_decay / rate if matrix else 0.0}
            for (matrix, rate), group in groups.items()
        ]
        self.steps = 0
        """Updates made."""
        self.start()
        self.scale = LossScale(recipe.train.precision == "fp16")

    def start(self) -> None:
        """Without moments, one AdamW for each group: Fleet splits them over data ranks, and takes no groups."""
        first, second = self.settings.betas
        self.reducer = Reducer(self.parameters, self.layout, self.tied)
        self.adamw = [
            paddle.optimizer.AdamW(
                self.settings.learning_rate * group["learning_rate"],
                beta1=first,
                beta2=second,
                epsilon=self.settings.epsilon,
                weight_decay=group["weight_decay"],
                parameters=list(group["params"]),
            )
            for group in self.groups
        ]
        self.of = {parameter.name: adamw for adamw in self.adamw for parameter in adamw._parameter_list}
        """Which AdamW has a parameter, by paddle's name."""
        self.updates = [self.reducer.split(adamw) for adamw in self.adamw]

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 outside fp16."""
        return self.scale.value

    def step(self, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        """Unscale, clip by the global norm and update. Returns (norm before clipping, why nothing was updated or None).

        The gradients are reduced, and freed in any case.
        """
        norm = self._global_norm() / self.loss_scale
        skipped = self.scale.refuses(loss_is_finite, norm)
        if skipped is None:
            clipping = self.settings.gradient_clipping
            factor = min(1.0, clipping / (norm + 1e-6)) if clipping > 0 else 1.0
            self._multiply_gradients(factor / self.loss_scale)
            with unique_name.guard():  # else moments that replace others, as after a load, get other names than those loaded
                for adamw, update, group in zip(self.adamw, self.updates, self.groups, strict=True):
                    adamw.set_lr(learning_rate * group["learning_rate"])
                    update.step()
            self.steps += 1
        self.scale.update(skipped is not None)
        self._free()
        return norm, skipped

    def norm_alone(self) -> float:
        """The global norm of the gradients, which are freed without an update."""
        norm = self._global_norm() / self.loss_scale
        self._free()
        return norm

    def _free(self) -> None:
        for parameter in self.parameters.values():
            free_gradient(parameter)

    def _global_norm(self) -> float:
        """L2 norm over all parameters of the model, each counted once however it is split or copied."""
        squares = [paddle._C_ops.squared_l2_norm(grad) for grad in self._gradients(self.reducer.counted)]
        here = paddle.add_n(squares).astype("float64") if squares else paddle.zeros([1], dtype="float64")
        return math.sqrt(self.layout.sum_all(here).item() / self.reducer.copies)

    @paddle.no_grad()
    def _multiply_gradients(self, factor: float) -> None:
        if factor != 1.0:
            for grad in self._gradients(self.reducer.updated):
                grad.scale_(factor)

    def _gradients(self, names: Iterable[str]) -> list[Tensor]:
        found = [gradient(self.parameters[name]) for name in names]
        return [gradient for gradient in found if gradient is not None]

    def moments(self, parameter: Tensor) -> list[Tensor]:
        """The two of a parameter that is updated here, or of its own entries, once there was a step."""
        adamw, name = self.of[parameter.name], kept_name(parameter)
        if not adamw._accumulators:  # loaded, and not used yet
            return [adamw._accumulators_holder[f"{name}_{theirs}_0"] for theirs in _MOMENTS.values()]
        return [adamw._accumulators[theirs][name] for theirs in _MOMENTS.values()]

    def tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Slice]:
        """What this process writes of moments and step counts, by ``<state>.<parameter name>``; none before the first step.

        ``shapes`` are those of the whole parameters that it may write about, as files have them.
        """
        found: dict[str, Slice] = {}
        if not self.steps:
            return found
        shared = not self.reducer.owners
        for name, shape in shapes.items():
            if name not in self.reducer.updated:
                continue
            parameter = self.parameters[name]
            for key, moment in zip(_MOMENTS, self.moments(parameter), strict=True):
                if (piece := written(name, shape, parameter, self.layout, shared, moment)) is not None:
                    found[f"{key}.{name}"] = piece
            if (number := written_number(name, self.steps, self.layout, shared)) is not None:
                found[f"{_STEP}.{name}"] = number
        return found

    def load_tensors(self, found: Iterable[Stored], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> None:
        """The reverse of ``tensors``, from any layout; without any, the optimizer has not made a step yet.

        UserError: a part of a tensor is in none of the files.
        """
        self.steps = 0
        targets: dict[tuple[str, str], Target] = {}
        for each in found:
            key, name = each.name.split(".", 1)
            if key == _STEP:
                self.steps = max(self.steps, int(each.content[()]))
                continue
            for own in self._copies(name):
                if (key, own) not in targets:
                    targets[key, own] = Target(own, held_region(own, self.parameters[own], shapes[name], self.layout))
                targets[key, own].take(each)
        check_filled(targets.values(), folder)
        self.start()
        if not self.steps:
            return
        for adamw, group in zip(self.adamw, self.groups, strict=True):
            state: dict[str, Any] = {}
            members = {parameter.name for parameter in group["params"]}
            for (key, name), target in targets.items():
                if (parameter := self.parameters[name]).name in members:
                    moment = paddle.to_tensor(placed(name, parameter, target.array, self.layout))
                    state[f"{kept_name(parameter)}_{_MOMENTS[key]}_0"] = moment
                    state |= self._powers(parameter)
            if state:
                adamw.set_state_dict(state)

    def _powers(self, parameter: Tensor) -> dict[str, Tensor]:
        """What the next step divides by, as paddle keeps it: rounded at every step, so that a resumed run has the same bits."""
        found = {}
        for number, beta in enumerate(self.settings.betas, 1):
            powers = np.multiply.accumulate(np.full(self.steps + 1, beta, np.float32))
            found[f"{kept_name(parameter)}_beta{number}_pow_acc_0"] = paddle.to_tensor(powers[-1:], place=paddle.CPUPlace())
        return found

    def _copies(self, name: str) -> list[str]:
        """The parameters that are updated here and that a stored tensor belongs to: none, one, or a tied copy."""
        return [own for own in (name, *([HEAD] if self.tied and name == EMBEDDING else [])) if own in self.reducer.updated]

    def vitals(self) -> dict[str, float]:
        """See ``danlu.engines.base.Vitals``."""
        groups = self.groups
        held = {parameter.name for group in groups for parameter in group["params"]}
        vectors = [group for group in groups if group["params"][0].ndim < 2]
        matrix = next((group for group in groups if group["params"][0].ndim >= 2), groups[0])
        adamw = next(each for each, group in zip(self.adamw, groups, strict=True) if group is matrix)
        left_out = [each for each in self.parameters.values() if each.name not in held or each.stop_gradient]
        return {
            "learning_rate": adamw.get_lr() / matrix["learning_rate"],
            "beta1": float(adamw._beta1),
            "beta2": float(adamw._beta2),
            "epsilon": float(adamw._epsilon),
            "weight_decay": matrix["weight_decay"] * matrix["learning_rate"],
            "decayed_vectors": sum(len(group["params"]) for group in vectors if group["weight_decay"]),
            "left_out": len(left_out),
            "kept_gradients": len(self._gradients(self.parameters)),
            "updates": float(self.steps),
        }
