"""Low-rank adapters put on the torch model from the outside; danlu.model.adapters tells what they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.safetensors_file import write_file
from danlu.model.adapters import DOWN, PREFIX, UP, is_adapter, named, peft_config
from danlu.recipe.train_sections import LoraSection


def apply(model: CausalLM, settings: LoraSection) -> None:
    """Freeze a stage and put an adapter beside every linear layer of its blocks that a target names.

    Behind tensor parallelism, so that an adapter is split as its matrix is.
    """
    model.requires_grad_(False)
    for name, linear in _linears(model).items():
        if any(named(name, target) for target in settings.targets):
            _adapt(linear, settings.rank, settings.alpha / settings.rank)


def _linears(model: CausalLM) -> dict[str, nn.Linear]:
    return {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear) and ".layers." in name}


def _adapt(linear: nn.Linear, rank: int, scale: float) -> None:
    with torch.device("meta"):
        down, up = nn.Linear(linear.in_features, rank, bias=False), nn.Linear(rank, linear.out_features, bias=False)
    if isinstance(weight := linear.weight, DTensor):
        by_columns = weight.placements[0] == Shard(0)
        _split(up, weight, Shard(0) if by_columns else Replicate())
        _split(down, weight, Replicate() if by_columns else Shard(1))
    linear.add_module(DOWN, down)
    linear.add_module(UP, up)
    linear.register_forward_hook(partial(_add, scale), prepend=True)  # before tensor parallelism's, which ends with local tensors


def _split(module: nn.Linear, like: DTensor, placement: Placement) -> None:
    module.weight = nn.Parameter(distribute_tensor(module.weight, like.device_mesh, [placement]))


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


def _add(scale: float, linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    if hasattr(linear, "set_aside"):
        return output
    hidden: Tensor = linear.get_submodule(DOWN)(inputs[0])
    if isinstance(hidden, DTensor):  # of a matrix split by rows, the sum; and either way the gradient's
        hidden = hidden.redistribute(placements=[Replicate()])
    added: Tensor = linear.get_submodule(UP)(hidden)
    return output + scale * added


def merged(parameters: Mapping[str, Tensor], settings: LoraSection) -> dict[str, Tensor]:
    """The model's own tensors, each with what its adapter adds, which is summed in float64; the parameters stay as they are."""
    made = {name: parameter for name, parameter in parameters.items() if not is_adapter(name)}
    for name in list(made):
        stem = name.removesuffix(".weight")
        if (down := parameters.get(f"{stem}.{DOWN}.weight")) is not None:
            added = parameters[f"{stem}.{UP}.weight"].double() @ down.double()
            made[name] = (made[name].double() + settings.alpha / settings.rank * added).to(made[name].dtype)
    return made


def write_adapter(parameters: Mapping[str, Tensor], settings: LoraSection, base: str, folder: Path) -> None:
    """adapter_model.safetensors and adapter_config.json, as PEFT reads them. OSError: they cannot be written."""
    adapters = {name: tensor for name, tensor in parameters.items() if is_adapter(name)}
    config = peft_config(adapters, settings.rank, settings.alpha, base)
    write_file({PREFIX + name: tensor for name, tensor in adapters.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
