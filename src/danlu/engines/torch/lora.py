"""Low-rank adapters beside frozen matrices (LoRA, Hu et al. 2021): y = x W' + alpha / rank x A' B', of which A and B are trained.

With weights of decomposed directions (DoRA, Liu et al. 2024) the sum of both matrices only tells the direction of its rows, whose
lengths m are trained too: y is multiplied by m / |W + alpha / rank B A|, in which the length counts as constant.

They are put on from the outside. Their names are PEFT's, see ``danlu.model.adapters``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.dropout import Dropout, elsewhere
from danlu.engines.torch.rounded import wide
from danlu.model.adapters import DOWN, LENGTHS, UP, named
from danlu.recipe.train_sections import LoraSection


def apply(model: CausalLM, settings: LoraSection) -> None:
    """Freeze a stage and put an adapter beside every linear layer of its blocks that a target names.

    Behind tensor parallelism, so that an adapter is split as its matrix is.
    """
    model.requires_grad_(False)
    for number, block in model.model.layers.items():
        noise = _Noise(settings.dropout) if settings.dropout else None
        linears = [(name, each) for name, each in block.named_modules() if isinstance(each, nn.Linear)]
        for place, (name, linear) in enumerate(linears, 1):
            if any(named(f"model.layers.{number}.{name}", target) for target in settings.targets):
                _put_on(linear, settings)
                dropped = None if noise is None else partial(noise.dropped, place)
                # Before tensor parallelism's, which ends with local tensors.
                linear.register_forward_hook(partial(_adapted, settings.alpha / settings.rank, dropped), prepend=True)
        if noise is not None:
            block.forward = partial(noise.during, block.forward)


def _linears(model: CausalLM) -> dict[str, nn.Linear]:
    return {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear) and ".layers." in name}


def _put_on(linear: nn.Linear, settings: LoraSection) -> None:
    rank = settings.rank
    with torch.device("meta"):
        down, up = nn.Linear(linear.in_features, rank, bias=False), nn.Linear(rank, linear.out_features, bias=False)
        lengths = nn.Parameter(torch.empty(linear.out_features)) if settings.dora else None
    if isinstance(weight := linear.weight, DTensor):
        by_columns = weight.placements[0] == Shard(0)
        by_output, by_input = (Shard(0), Replicate()) if by_columns else (Replicate(), Shard(1))
        up.weight, down.weight = _split(up.weight, weight, by_output), _split(down.weight, weight, by_input)
        lengths = None if lengths is None else _split(lengths, weight, by_output)
    linear.add_module(DOWN, down)
    linear.add_module(UP, up)
    if lengths is not None:
        linear.register_parameter(LENGTHS, lengths)


def _split(parameter: Tensor, like: DTensor, placement: Placement) -> nn.Parameter:
    return nn.Parameter(distribute_tensor(parameter, like.device_mesh, [placement]))


@contextmanager
def set_aside(model: CausalLM) -> Iterator[None]:
    """The model computes as if it had no adapters."""
    adapted = [linear for linear in _linears(model).values() if hasattr(linear, DOWN)]
    for linear in adapted:
        linear.set_aside = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for linear in adapted:
            del linear.set_aside


class _Noise:
    """Dropout of what the adapters of a block read, of each by itself."""

    def __init__(self, rate: float) -> None:
        self.dropout = Dropout(rate)
        self.keys_bt: Tensor | None = None
        """Of the tokens that the block is computing with; None: nothing is dropped."""

    def during(self, forward: Any, x_btd: Tensor, rotary: Any, masks: Any, cache: Any, keys_bt: Tensor | None = None) -> Tensor:
        """The block's forward; inside what is recomputed, so that its keys are there again."""
        self.keys_bt = keys_bt
        made: Tensor = forward(x_btd, rotary, masks, cache, keys_bt)
        return made

    def dropped(self, place: int, x_bti: Tensor) -> Tensor:
        """An adapter's input, of which a tensor rank may hold some channels."""
        if self.keys_bt is None:
            return x_bti
        here = x_bti.to_local() if isinstance(x_bti, DTensor) else x_bti
        d = here.shape[-1]
        by_channels = isinstance(x_bti, DTensor) and x_bti.placements[0].is_shard()
        first = x_bti.device_mesh.get_local_rank() * d if by_channels else 0  # type: ignore[attr-defined]
        keep: Tensor = self.dropout.keep(elsewhere(self.keys_bt, place), first, d)
        if isinstance(x_bti, DTensor):
            keep = DTensor.from_local(keep, x_bti.device_mesh, x_bti.placements, run_check=False)
        return x_bti * keep * self.dropout.scale


def _adapted(scale: float, dropped: Any, linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """What a frozen matrix and its adapter make; a forward hook."""
    if hasattr(linear, "set_aside"):
        return output
    read = inputs[0] if dropped is None else dropped(inputs[0])
    hidden: Tensor = linear.get_submodule(DOWN)(read)
    if isinstance(hidden, DTensor):  # of a matrix split by rows, the sum; and either way the gradient's
        hidden = hidden.redistribute(placements=[Replicate()])
    added: Tensor = linear.get_submodule(UP)(hidden)
    if not hasattr(linear, LENGTHS):
        return output + scale * added
    bias: Tensor | None = linear.bias  # type: ignore[assignment]
    made = output + scale * added if bias is None else output - bias + scale * added
    lengths: Tensor = getattr(linear, LENGTHS)
    made = (lengths / _lengths(linear, scale) * made).to(output.dtype)
    return made if bias is None else made + bias


@torch.no_grad()
def _lengths(linear: nn.Module, scale: float) -> Tensor:
    """(output): of the rows of W + scale x B A, which is not made, since |w + a|^2 = |w|^2 + 2 w a + |a|^2."""
    weight = wide(linear)
    down, up = (linear.get_submodule(name).weight for name in (DOWN, UP))
    with torch.autocast(weight.device.type, enabled=False):
        both = ((weight @ down.t() * 2 + up @ (down @ down.t()) * scale) * up).sum(1)  # type: ignore[operator]
        square = weight.square().sum(1) + scale * both
    return (square.redistribute(placements=_whole(square)) if isinstance(square, DTensor) else square).sqrt()


def _whole(square: DTensor) -> list[Placement]:
    return [Replicate() if placement.is_partial() else placement for placement in square.placements]
