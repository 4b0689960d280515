"""Weights of adapters on the torch engine: drawn in any layout, merged into the model, and written as PEFT reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.torch.pieces import fill, gather
from danlu.engines.torch.rounded import is_scale, restored
from danlu.engines.torch.safetensors_file import write_file
from danlu.model.adapters import DOWN, LENGTHS, PREFIX, UP, initial, is_adapter, peft_config
from danlu.recipe.train_sections import LoraSection


def draw(parameters: Mapping[str, Tensor], seed: int, device: torch.device) -> None:
    """Let the adapters among the parameters change nothing yet, in any layout, whose processes must all call."""
    for name in sorted(filter(is_adapter, parameters)):
        if name.endswith(f".{LENGTHS}"):
            weight = restored(parameters, f"{name.removesuffix(f'.{LENGTHS}')}.weight")
            whole = gather(weight.to(device))  # from where it may be offloaded to
            fill(parameters[name], torch.linalg.vector_norm(whole, dim=1))
        else:
            fill(parameters[name], torch.from_numpy(initial(name, tuple(parameters[name].shape), seed)))


def merged(parameters: Mapping[str, Tensor], settings: LoraSection) -> dict[str, Tensor]:
    """The model's own tensors, each with what its adapter makes of it, in float64; the parameters stay as they are."""
    made = {name: restored(parameters, name) for name in parameters if not is_adapter(name) and not is_scale(name)}
    for name in list(made):
        stem = name.removesuffix(".weight")
        if (down := parameters.get(f"{stem}.{DOWN}.weight")) is not None:
            added = parameters[f"{stem}.{UP}.weight"].double() @ down.double()
            weight = made[name].double() + settings.alpha / settings.rank * added
            if (lengths := parameters.get(f"{stem}.{LENGTHS}")) is not None:
                weight *= (lengths.double() / torch.linalg.vector_norm(weight, dim=1))[:, None]
            made[name] = weight.to(made[name].dtype)
    return made


def write_adapter(parameters: Mapping[str, Tensor], settings: LoraSection, base: str, folder: Path) -> None:
    """adapter_model.safetensors and adapter_config.json, as PEFT reads them. OSError: they cannot be written."""
    adapters = {name: tensor for name, tensor in parameters.items() if is_adapter(name)}
    config = peft_config(adapters, settings.rank, settings.alpha, base, settings.dropout, settings.dora)
    write_file({PREFIX + name: tensor for name, tensor in adapters.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
