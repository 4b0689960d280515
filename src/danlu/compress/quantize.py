"""All of a model's matrices by a plan; with a calibration text layer by layer, each on what the quantized ones before it make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from danlu.compress import gptq, rounding
from danlu.compress.plan import Plan, matrices, module
from danlu.compress.rounding import Floats
from danlu.compress.smoothquant import READERS, smooth
from danlu.errors import UserError
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.shape import ModelShape

WINDOW = 512
"""Tokens of the calibration text that are read together."""


class Quantized(NamedTuple):
    """A model's arrays, and of each quantized matrix how far it is off."""

    arrays: dict[str, NDArray[Any]]
    """Integers as int8 under the matrix's own name, with their scales beside them as ``..._scale``; all else float32."""
    errors: dict[str, float]
    """Relative, root mean square: of the outputs where the calibration text shows inputs, of the weights elsewhere."""


class _Inputs(NamedTuple):
    hessian: NDArray[np.float64]
    gptq: bool


def quantize(shape: ModelShape, weights: Mapping[str, Floats], plan: Plan, text: NDArray[np.int64] | None = None) -> Quantized:
    """Quantize the weights; ``text`` is what to calibrate on. UserError: the plan does not fit, or the text is too short."""
    wanted = matrices(shape, plan)
    made = Quantized({}, {})
    if text is None:
        for name, weight in weights.items():
            _add(made, name, weight, plan, name in wanted, None)
        return made
    _check_length(wanted, len(text))
    _add(made, EMBEDDING, weights[EMBEDDING], plan, EMBEDDING in wanted, None)
    hidden = list(_embedded(made, text))
    for number in range(shape.layers):
        hidden = _layer(made, shape, weights, number, plan, wanted, hidden)
    norm = weights["model.norm.weight"]
    made.arrays["model.norm.weight"] = norm
    if HEAD in weights:
        inputs = _final_inputs(hidden, norm, shape.norm_epsilon) if HEAD in wanted else None
        _add(made, HEAD, weights[HEAD], plan, HEAD in wanted, None if inputs is None else _Inputs(inputs, "gptq" in plan.methods))
    return made


def _check_length(wanted: Mapping[str, tuple[int, ...]], tokens: int) -> None:
    """UserError: the text has fewer tokens than a matrix has inputs, so that it cannot show what each of them is good for."""
    inputs = {name: size[1] for name, size in wanted.items() if name != EMBEDDING}
    if not inputs:
        raise UserError("--calibrate: only the embedding is left to quantize, which has no inputs; leave it out")
    name = max(inputs, key=lambda it: inputs[it])
    if tokens < inputs[name]:
        raise UserError(
            f"the calibration text is too short: {tokens:,} tokens for the {inputs[name]:,} inputs of {module(name)}; "
            "give a longer file, or more of it with --calibration-tokens"
        )


def _layer(
    made: Quantized,
    shape: ModelShape,
    weights: Mapping[str, Floats],
    number: int,
    plan: Plan,
    wanted: Mapping[str, Any],
    hidden: Any,
) -> Any:
    """Quantize a layer; returns the windows of hidden states after it."""
    from danlu.compress.calibration import Layer

    prefix = f"model.layers.{number}."
    own = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    layer = Layer(shape, number)
    layer.set(own)
    seen = layer.observe(hidden)
    hessians = {name: each.hessian for name, each in seen.items()}
    if "smoothquant" in plan.methods:
        for source, scale in smooth(shape, own, {name: each.largest.numpy() for name, each in seen.items()}).items():
            hessians[source] = hessians[source] / scale / scale[:, None]
    readers = {f"{name}.weight": source for source, names in READERS.items() for name in names}
    for name, array in own.items():
        inputs = _Inputs(hessians[readers[name]], "gptq" in plan.methods) if name in readers else None
        _add(made, prefix + name, array, plan, prefix + name in wanted, inputs)
        own[name] = restored(made.arrays, prefix + name)
    layer.set(own)
    return layer.run(hidden)


def _add(made: Quantized, name: str, weight: Floats, plan: Plan, wanted: bool, inputs: _Inputs | None) -> None:
    if not wanted:
        made.arrays[name] = weight.astype(np.float32)
        return
    hessian = None if inputs is None else inputs.hessian
    bits = plan.bits_of(name)
    scale = rounding.scales(weight, bits, plan.group_of(name), None if hessian is None else np.diag(hessian))
    if inputs is not None and inputs.gptq:
        numbers = gptq.compensated(weight, scale, bits, inputs.hessian)
    else:
        numbers = rounding.nearest(weight, scale, bits)
    made.arrays[name], made.arrays[f"{name}_scale"] = numbers, scale
    made.errors[name] = rounding.relative_error(weight, rounding.restore(numbers, scale), hessian)


def restored(arrays: Mapping[str, NDArray[Any]], name: str) -> Floats:
    """The float32 weight that is stored under a name, whichever way."""
    scale = arrays.get(f"{name}_scale")
    return arrays[name] if scale is None else rounding.restore(arrays[name], scale)


def _embedded(made: Quantized, text: NDArray[np.int64]) -> Iterator[Any]:
    import torch

    table, scale = made.arrays[EMBEDDING], made.arrays.get(f"{EMBEDDING}_scale")
    for start in range(0, len(text), WINDOW):
        rows = text[start : start + WINDOW]
        yield torch.from_numpy(table[rows] if scale is None else rounding.restore(table[rows], scale[rows]))


def _final_inputs(hidden: Any, norm: Floats, epsilon: float) -> NDArray[np.float64]:
    """The mean of x x^T over what the output projection reads."""
    import torch
    import torch.nn.functional as F

    from danlu.compress.calibration import Seen

    seen = Seen(len(norm))
    for x_td in hidden:
        seen.add(F.rms_norm(x_td, norm.shape, torch.from_numpy(norm), epsilon))
    return seen.hessian
