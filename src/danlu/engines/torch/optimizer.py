"""AdamW with decoupled weight decay (Loshchilov & Hutter 2019), clipping by the global norm, and dynamic loss scaling."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from danlu.engines.loss_scale import LossScale
from danlu.engines.stored import Stored
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.offload import OffloadedAdamW, moves_moments
from danlu.engines.torch.pieces import gather, local
from danlu.engines.torch.slices import Target, check_filled
from danlu.model.drawing import EMBEDDING
from danlu.recipe import Recipe


class Optimizer:
    """Turns the gradients of a process's parameters into an update, or says why it did not.

    Every decision rests on the global norm and the global loss, so that all processes of a layout take the same one.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        shadows: set[str],
        recipe: Recipe,
        layout: Layout,
        offload: Path | None,
        rates: Mapping[str, float],
    ) -> None:
        """``shadows`` are second copies of a parameter (tied embeddings on two pipeline ranks), which the norm counts once.

        ``offload`` is where what the recipe offloads to disk goes; ``rates`` are what each one's learning rate is multiplied by.
        """
        settings = recipe.train.optimizer
        self.parameters, self.shadows, self.layout = dict(parameters), shadows, layout
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        self.counted = [parameter for name, parameter in parameters.items() if name not in shadows]
        # The fused update takes parameters of one kind at a time: of one mesh, or of none.
        # What is offloaded is streamed layer by layer.
        away = moves_moments(recipe.memory.offload_optimizer, parameters)
        groups: dict[Any, list[Tensor]] = defaultdict(list)
        for name, parameter in parameters.items():
            layer = name.partition("layers.")[2].partition(".")[0] or name
            groups[layer if away else None, parameter.ndim >= 2, rates[name], _mesh(parameter)].append(parameter)
        options = [
            # What decays a weight in a step is learning rate x weight decay, which is to be the same for all.
            {"params": group, "rate": rate, "weight_decay": settings.weight_decay / rate if matrix else 0.0}
            for (_, matrix, rate, _), group in groups.items()
        ]
        first, second = settings.betas
        common: dict[str, Any] = {
            "lr": settings.learning_rate,
            "betas": (first, second),
            "eps": settings.epsilon,
            "fused": True,
        }
        self.adamw = (
            OffloadedAdamW(options, offload if recipe.memory.offload_optimizer == "disk" else None, **common)
            if away
            else torch.optim.AdamW(options, **common)
        )
        self.clipping = settings.gradient_clipping
        self.scale = LossScale(recipe.train.precision == "fp16")

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 outside fp16."""
        return self.scale.value

    def step(self, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        """Unscale, clip by the global norm and update. Returns (norm before clipping, why nothing was updated or None).

        The gradients are freed in any case.
        """
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate * group["rate"]
        norm = self._global_norm() / self.loss_scale
        skipped = self.scale.refuses(loss_is_finite, norm)
        if skipped is None:
            factor = min(1.0, self.clipping / (norm + 1e-6)) if self.clipping > 0 else 1.0
            self._multiply_gradients(factor / self.loss_scale)
            self.adamw.step()
        self.scale.update(skipped is not None)
        self.adamw.zero_grad(set_to_none=True)
        return norm, skipped

    def norm_alone(self) -> float:
        """The global norm of the gradients, which are freed without an update."""
        norm = self._global_norm() / self.loss_scale
        self.adamw.zero_grad(set_to_none=True)
        return norm

    def _global_norm(self) -> float:
        """L2 norm over all parameters of the model, each counted once however it is split or copied."""
        by_mesh: dict[Any, list[Tensor]] = defaultdict(list)
        for parameter in self.counted:
            if parameter.grad is not None:
                by_mesh[_mesh(parameter)].append(parameter.grad)
        norms = [gather(torch.nn.utils.get_total_norm(gradients)) for gradients in by_mesh.values()]
        square = torch.stack([norm.float() for norm in norms]).square().sum()
        return math.sqrt(self.layout.sum(square, "pipeline").item())

    def _multiply_gradients(self, factor: float) -> None:
        if factor != 1.0:
            torch._foreach_mul_([local(parameter.grad) for parameter in self.names if parameter.grad is not None], factor)

    def tensors(self, names: set[str]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Moments and step counts of parameters: (``<state>.<parameter name>``, what it is split as, this process's piece)."""
        for name, parameter in self.parameters.items():
            if name in names:
                for key, value in self.adamw.state.get(parameter, {}).items():
                    yield f"{key}.{name}", parameter if value.ndim else value, local(value)

    def load_tensors(self, found: Iterable[Stored], folder: Path) -> None:
        """The reverse of ``tensors``, from any layout; without any, the optimizer has not made a step yet.

        UserError: a part of a tensor is in none of the files.
        """
        self.adamw.state.clear()
        targets: dict[tuple[str, Tensor], Target] = {}
        for each in found:
            key, name = each.name.split(".", 1)
            for parameter in self._copies(name):
                if (each.name, parameter) not in targets:
                    self.adamw.state[parameter][key] = state = self._new_state(parameter, key, number=not each.shape)
                    targets[each.name, parameter] = Target(each.name, state)
                targets[each.name, parameter].take(each)
        check_filled(targets.values(), folder)

    def _new_state(self, parameter: Tensor, key: str, number: bool) -> Tensor:
        """Where a moment or the step count goes: beside its parameter, where the fused update wants it, or offloaded."""
        if isinstance(self.adamw, OffloadedAdamW):
            return torch.zeros(()) if number else self.adamw.slot(parameter, key)
        return torch.zeros((), device=parameter.device) if number else torch.zeros_like(parameter, requires_grad=False)

    def _copies(self, name: str) -> list[Tensor]:
        """This process's parameters that a stored tensor belongs to: none, one, or a tied copy."""
        names = [name, *(self.shadows if name == EMBEDDING else ())]
        return [self.parameters[each] for each in names if each in self.parameters]

    def vitals(self) -> dict[str, float]:
        """See ``danlu.engines.base.Vitals``."""
        groups = self.adamw.param_groups
        held = {id(parameter) for group in groups for parameter in group["params"]}
        vectors = [group for group in groups if group["params"][0].ndim < 2]
        matrix = next((group for group in groups if group["params"][0].ndim >= 2), groups[0])
        first, second = matrix["betas"]
        left_out = [each for each in self.parameters.values() if id(each) not in held or not each.requires_grad]
        counts = [state["step"].reshape(1) for state in self.adamw.state.values() if "step" in state]
        return {
            "learning_rate": matrix["lr"] / matrix["rate"],
            "beta1": first,
            "beta2": second,
            "epsilon": matrix["eps"],
            "weight_decay": matrix["weight_decay"] * matrix["rate"],
            "decayed_vectors": sum(len(group["params"]) for group in vectors if group["weight_decay"]),
            "left_out": len(left_out),
            "kept_gradients": sum(each.grad is not None for each in self.parameters.values()),
            "updates": float(torch.cat(counts).max()) if counts else 0.0,
        }


def _mesh(tensor: Tensor) -> Any:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None
