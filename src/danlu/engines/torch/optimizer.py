"""AdamW with decoupled weight decay (Loshchilov & Hutter 2019), clipping and dynamic loss scaling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from danlu.engines.base import LOSS_SCALE_OVERFLOW
from danlu.recipe import Recipe


class Optimizer:
    """Turns the gradients of a model into an update, or says why it did not."""

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device) -> None:
        settings = recipe.train.optimizer
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        matrices = [parameter for parameter in self.names if parameter.ndim >= 2]
        vectors = [parameter for parameter in self.names if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        first, second = settings.betas
        self.adamw = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(first, second), eps=settings.epsilon, fused=True)
        self.clipping = settings.gradient_clipping
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.train.precision == "fp16")
        # The loss is scaled inside the fused loss; scaling something here makes the scaler set itself up.
        self.scaler.scale(torch.zeros((), device=device))

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 outside fp16."""
        return self.scaler.get_scale()

    def step(self, learning_rate: float, loss_is_finite: bool) -> tuple[float, str | None]:
        """Unscale, clip by the global norm and update. Returns (norm before clipping, why nothing was updated or None).

        The gradients are freed in any case.
        """
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        scale = self.loss_scale
        self.scaler.unscale_(self.adamw)
        gradients = [parameter.grad for parameter in self.names if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = math.isfinite(norm.item())
        skipped = None
        if loss_is_finite and finite:
            if self.clipping > 0:
                torch.nn.utils.clip_grads_with_norm_(self.names, self.clipping, norm)
            self.scaler.step(self.adamw)
        elif not loss_is_finite:
            skipped = "the loss is not finite"
        else:
            skipped = LOSS_SCALE_OVERFLOW if self.scaler.is_enabled() and scale > 1 else "the gradient is not finite"
        self.scaler.update()
        self.adamw.zero_grad(set_to_none=True)
        return norm.item(), skipped

    def tensors(self) -> dict[str, Tensor]:
        """The moments and step counts of every parameter, by ``<state>.<parameter name>``."""
        return {
            f"{key}.{self.names[parameter]}": value
            for parameter, state in self.adamw.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of ``tensors``; without any, the optimizer has not made a step yet."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        self.adamw.state.clear()
        for full_name, value in tensors.items():
            key, name = full_name.split(".", 1)
            # The step count too: the fused update wants it beside its parameter.
            self.adamw.state[parameters[name]][key] = value.to(parameters[name].device)

    def state(self) -> dict[str, Any]:
        """The loss scaler's numbers (JSON)."""
        return self.scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``; what was saved in another precision holds none, and the scale starts anew."""
        if state:
            self.scaler.load_state_dict(state)
