"""Low-rank adapters beside frozen matrices (LoRA, Hu et al. 2021): which there are, what they start from, what PEFT calls them.

y = x W' + alpha / rank x A' B', of which A and B are trained. Their names are PEFT's without its prefix:
``<module>.lora_A.weight`` (rank, input), ``<module>.lora_B.weight`` (output, rank) and, with DoRA,
``<module>.lora_magnitude_vector`` (output).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

DOWN, UP, LENGTHS = "lora_A", "lora_B", "lora_magnitude_vector"
PREFIX = "base_model.model."
"""What PEFT puts before the names in its files."""


def is_adapter(name: str) -> bool:
    """Whether a tensor is part of an adapter."""
    return name.endswith((f".{DOWN}.weight", f".{UP}.weight", f".{LENGTHS}"))


def named(name: str, target: str) -> bool:
    """By a pattern for the whole name, such as ``model.layers.1?.mlp.*``, or for its last part, such as ``*_proj``."""
    return fnmatchcase(name, target) or fnmatchcase(name.rsplit(".", 1)[1], target)


def matrices(shape: ModelShape, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Modules that a target names, with the shapes (output, input) of their matrices."""
    return {name: size for name, size in _linears(shape).items() if any(named(name, target) for target in targets)}


def check(shape: ModelShape, targets: Sequence[str]) -> None:
    """UserError: a target names no matrix of the model."""
    linears = _linears(shape)
    for target in targets:
        if not any(named(name, target) for name in linears):
            kinds = ", ".join(sorted({name.rsplit(".", 1)[1] for name in linears}))
            raise UserError(f"train.lora.targets: {target!r} names no matrix of the model; it has {kinds} in every layer")


def _linears(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    found = {name.removesuffix(".weight"): size for name, size in tensor_shapes(shape).items()}
    return {name: size for name, size in found.items() if ".layers." in name and name.endswith("_proj")}


def adapted(shape: ModelShape, targets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """For each layer the last parts of the names of those that a target names, such as ``q_proj``."""
    found: list[list[str]] = [[] for _ in range(shape.layers)]
    for name in matrices(shape, targets):
        found[int(name.split(".")[2])].append(name.rsplit(".", 1)[1])
    return tuple(map(tuple, found))


def adapter_shapes(shape: ModelShape, targets: Sequence[str], rank: int) -> dict[str, tuple[int, ...]]:
    """Of all tensors of the adapters, as files have them."""
    found: dict[str, tuple[int, ...]] = {}
    for name, (outputs, inputs) in matrices(shape, targets).items():
        found |= {f"{name}.{DOWN}.weight": (rank, inputs), f"{name}.{UP}.weight": (outputs, rank)}
    return found


def initial(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """What an adapter starts from, by seed and name alone: A uniform within 1 / sqrt(input), as PEFT has it, and B zero."""
    if name.endswith(f".{UP}.weight"):
        return np.zeros(shape, np.float32)
    key = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest(), "big")
    bound = shape[1] ** -0.5
    return np.random.Generator(np.random.Philox(key=key)).uniform(-bound, bound, shape).astype(np.float32)


def peft_config(
    names: Iterable[str], rank: int, alpha: float, base: str, dropout: float = 0.0, dora: bool = False
) -> Mapping[str, Any]:
    """adapter_config.json for the adapters of these tensors, as PEFT reads it."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "use_dora": dora,
        "target_modules": sorted(name.removesuffix(f".{DOWN}.weight") for name in names if name.endswith(f".{DOWN}.weight")),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
