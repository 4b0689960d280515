"""What is to become of a model's matrices: to how many bits, in which groups, by which methods, and which are left alone."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from danlu.errors import UserError
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

Scheme = Literal["plain", "w8a16", "w8a8", "w4a16"]
"""Bits of weights, and of the activations that they meet; 16: these stay floats. Plain: so do the weights."""
Method = Literal["gptq", "smoothquant"]


ENDS = (EMBEDDING, HEAD)


class Plan(NamedTuple):
    """How to quantize a model."""

    scheme: Scheme = "w8a8"
    group: int = 0
    """Inputs of a row that share a scale; 0: all."""
    keep: tuple[str, ...] = ()
    """Patterns of module names that stay as they are."""
    methods: tuple[Method, ...] = ()
    """What a calibration text is for; without any, values are rounded to the nearest."""

    def bits_of(self, name: str) -> int:
        """Of a matrix's weights. The embedding and the output have 8 at least: with 4 they cost more than all others do."""
        return 4 if self.scheme == "w4a16" and name not in ENDS else 8

    def group_of(self, name: str) -> int:
        """Inputs of a matrix that share a scale; 0: all of a row."""
        return 0 if name in ENDS else self.group


def matrices(shape: ModelShape, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Name -> (outputs, inputs) of what is to be quantized.

    UserError: a pattern fits nothing, nothing is left, a group does not fit a matrix, or a method the scheme.
    """
    if plan.group and plan.scheme == "w8a8":
        raise UserError("--group: 8-bit activations meet weights with one scale a row; leave it out, or take --scheme w8a16")
    if "smoothquant" in plan.methods and plan.scheme != "w8a8":
        raise UserError(f"--method smoothquant makes 8-bit activations easier, and {plan.scheme} has none; leave it out")
    found = {name: size for name, size in tensor_shapes(shape).items() if len(size) == 2}
    for pattern in plan.keep:
        if not any(_fits(name, [pattern]) for name in found):
            example = "model.layers.0.mlp.down_proj"
            hint = "the output is the embedding, model.embed_tokens" if _fits(HEAD, [pattern]) else f"they are as {example}"
            raise UserError(f"--keep {pattern}: no matrix has such a name; {hint}")
    left: dict[str, tuple[int, ...]] = {name: size for name, size in found.items() if not _fits(name, plan.keep)}
    if not left:
        raise UserError("--keep leaves nothing to quantize; name fewer matrices")
    for name, (_, inputs) in left.items():
        if plan.group_of(name) and inputs % plan.group:
            raise UserError(
                f"{module(name)}: its {inputs} inputs are not whole groups of {plan.group}; "
                f"give a --group that divides {inputs}, or --keep {module(name)}"
            )
    return left


def module(name: str) -> str:
    """The name of a tensor's module."""
    return name.removesuffix(".weight")


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(module(name), pattern) for pattern in patterns)
