"""Weights of adapters: what they start from, merged into the model, and as files that PEFT reads.

Their names are PEFT's without its prefix: ``<module>.lora_A.weight`` (rank, input), ``<module>.lora_B.weight`` (output, rank)
and, with DoRA, ``<module>.lora_magnitude_vector`` (output).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from danlu.engines.torch.pieces import fill, gather
from danlu.engines.torch.rounded import is_scale, restored
from danlu.engines.torch.safetensors_file import write_file
from danlu.recipe.train_sections import LoraSection

DOWN, UP, LENGTHS = "lora_A", "lora_B", "lora_magnitude_vector"
_PREFIX = "base_model.model."


def is_adapter(name: str) -> bool:
    """Whether a tensor is part of an adapter."""
    return name.endswith((f".{DOWN}.weight", f".{UP}.weight", f".{LENGTHS}"))


def draw(parameters: Mapping[str, Tensor], seed: int, device: torch.device) -> None:
    """Let the adapters among the parameters change nothing yet, in any layout, whose processes must all call."""
    for name in sorted(filter(is_adapter, parameters)):
        if name.endswith(f".{LENGTHS}"):
            weight = restored(parameters, f"{name.removesuffix(f'.{LENGTHS}')}.weight")
            whole = gather(weight.to(device))  # from where it may be offloaded to
            fill(parameters[name], torch.linalg.vector_norm(whole, dim=1))
        else:
            fill(parameters[name], torch.from_numpy(_initial(name, tuple(parameters[name].shape), seed)))


def _initial(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """By seed and name alone: A uniform within 1 / sqrt(input), as PEFT has it, and B zero."""
    if name.endswith(f".{UP}.weight"):
        return np.zeros(shape, np.float32)
    key = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest(), "big")
    bound = shape[1] ** -0.5
    return np.random.Generator(np.random.Philox(key=key)).uniform(-bound, bound, shape).astype(np.float32)


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
    modules = sorted(name.removesuffix(f".{DOWN}.weight") for name in adapters if name.endswith(f".{DOWN}.weight"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_dora": settings.dora,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    write_file({_PREFIX + name: tensor for name, tensor in adapters.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
