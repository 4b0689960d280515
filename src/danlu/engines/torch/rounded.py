"""Frozen matrices as int8 with a scale for each row, made wide again wherever they are used (as in QLoRA, Dettmers et al. 2023).

Beside adapters only, which alone are trained. What is kept for the backward pass is the int8 matrix, which is there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from danlu.engines.stored import Stored
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.pieces import fill
from danlu.engines.torch.slices import Target

SCALE = "weight_scale"


def is_scale(name: str) -> bool:
    """Whether a tensor is what the rows of a rounded matrix are multiplied by."""
    return name.endswith(f".{SCALE}")


def rounded(weight_oi: Tensor) -> tuple[Tensor, Tensor]:
    """int8 (o, i), and float32 (o, 1) to multiply it by: symmetric, the largest value of a row becomes 127."""
    scale = weight_oi.float().abs().amax(1, keepdim=True) / 127
    return (weight_oi.float() / torch.where(scale > 0, scale, 1)).round().to(torch.int8), scale


def apply(model: CausalLM) -> None:
    """Round every linear layer of a stage's blocks, which has no storage yet. Behind tensor parallelism."""
    for block in model.model.layers.values():
        for linear in [each for each in block.modules() if isinstance(each, nn.Linear)]:
            weight = linear.weight
            with torch.device("meta"):
                scale = torch.empty(linear.out_features, 1)
            if isinstance(weight, DTensor):
                by_rows = Shard(0) if weight.placements[0] == Shard(0) else Replicate()
                scale = distribute_tensor(scale, weight.device_mesh, [by_rows])
            linear.weight = nn.Parameter(weight.detach().to(torch.int8), requires_grad=False)
            linear.register_parameter(SCALE, nn.Parameter(scale, requires_grad=False))
            linear.forward = partial(_product, linear)  # type: ignore[method-assign]


def wide(linear: nn.Module) -> Tensor:
    """The matrix of a linear layer in floating point, rounded or not."""
    weight: Tensor = linear.weight  # type: ignore[assignment]
    return weight * getattr(linear, SCALE) if weight.dtype == torch.int8 else weight


def restored(parameters: Mapping[str, Tensor], name: str) -> Tensor:
    """The same by name."""
    scale = parameters.get(f"{name}_scale")
    return parameters[name] if scale is None else parameters[name] * scale


def fill_rounded(parameters: Mapping[str, Tensor], name: str, whole: Tensor) -> None:
    """Let a matrix among the parameters, which may be rounded, have these values."""
    if parameters[name].dtype == torch.int8:
        whole, scale = rounded(whole)
        fill(parameters[f"{name}_scale"], scale)
    fill(parameters[name], whole)


def _product(linear: nn.Linear, x: Tensor) -> Tensor:
    made: Tensor = _Product.apply(x, linear.weight, getattr(linear, SCALE))  # type: ignore[no-untyped-call]
    return made if linear.bias is None else made + linear.bias.to(made.dtype)


class _Product(torch.autograd.Function):
    """x times the transposed matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return F.linear(x, weight * scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        weight, scale = ctx.saved_tensors
        gradient = gradients[0]
        return gradient @ (weight * scale).to(gradient.dtype), None, None


class RoundedTarget(Target):
    """A rounded matrix that is to be filled from files, which hold it rounded, too, or whole as it was before."""

    def __init__(self, name: str, parameter: Tensor, scale: Target) -> None:
        super().__init__(name, parameter)
        self.scale = scale

    def take(self, found: Stored) -> Tensor | None:
        """Rounding takes whole rows, so that a process reads more of them than it keeps."""
        if found.dtype == "I8":
            return super().take(found)
        assert not any(found.offsets), "slices are rounded already"
        rows = found.content[self.region[0]]
        numbers, scale = rounded(rows)
        self.piece.copy_(numbers[:, self.region[1]])
        self.scale.piece.copy_(scale)
        self.left = self.scale.left = 0
        return rows  # type: ignore[no-any-return]
