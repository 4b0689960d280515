"""Which linear layers of a model have a low-rank adapter (LoRA, Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape


def named(name: str, target: str) -> bool:
    """By a pattern for the whole name, such as ``model.layers.1?.mlp.*``, or for its last part, such as ``*_proj``."""
    return fnmatchcase(name, target) or fnmatchcase(name.rsplit(".", 1)[1], target)


def adapted(shape: ModelShape, targets: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """For each layer the last parts of the names of those that a target names, such as ``q_proj``."""
    found: list[list[str]] = [[] for _ in range(shape.layers)]
    for tensor in tensor_shapes(shape):
        name = tensor.removesuffix(".weight")
        if ".layers." in name and name.endswith("_proj") and any(named(name, target) for target in targets):
            found[int(name.split(".")[2])].append(name.rsplit(".", 1)[1])
    return tuple(map(tuple, found))
