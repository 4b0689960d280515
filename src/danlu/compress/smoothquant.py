"""Scales moved from activations into weights, so that 8 bits suffice for both (SmoothQuant, Xiao et al. 2023).

An input that is large in activations is divided by s, and its column of the weights multiplied by s. The division is folded
into what makes the input: the weight of a norm, or the rows of the projection in front. So the product is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from danlu.compress.rounding import Floats
from danlu.model.shape import ModelShape

STRENGTH = 0.5
"""The paper's alpha: how much of what activations spread over is moved."""

QUERY, OUTPUT, GATE, DOWN = "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"
READERS: dict[str, tuple[str, ...]] = {
    QUERY: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    OUTPUT: (OUTPUT,),
    GATE: ("mlp.gate_proj", "mlp.up_proj"),
    DOWN: (DOWN,),
}
"""Of a layer's four inputs, by the first that reads it, all projections that do."""
_MAKERS = {QUERY: "input_layernorm", OUTPUT: "self_attn.v_proj", GATE: "post_attention_layernorm", DOWN: "mlp.up_proj"}


def smooth(shape: ModelShape, layer: dict[str, Floats], largest: Mapping[str, Floats]) -> dict[str, Floats]:
    """Move scales in a layer's weights (by their names within it), in place; returns s (i,) of each of its inputs.

    ``largest`` absolute values (i,) of the inputs, by the first projection that reads each.
    """
    moved = {}
    for source, readers in READERS.items():
        heads = shape.heads // shape.key_value_heads if source == OUTPUT else 1
        scale = _scale(largest[source], [layer[f"{name}.weight"] for name in readers], heads, shape.head_dim)
        for name in readers:
            layer[f"{name}.weight"] = layer[f"{name}.weight"] * scale
        maker = scale.reshape(-1, heads, shape.head_dim)[:, 0].ravel() if heads > 1 else scale
        for part in ("weight", "bias"):
            if (found := layer.get(f"{_MAKERS[source]}.{part}")) is not None:
                layer[f"{_MAKERS[source]}.{part}"] = found / (maker if found.ndim == 1 else maker[:, None])
        moved[source] = scale
    return moved


def _scale(largest: Floats, weights: Sequence[Floats], heads: int, size: int) -> Floats:
    """s (i,): the root of the largest activation over the largest weight; the same for all heads that read one value head."""
    columns = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
    inputs, outputs = (_shared(each, heads, size) for each in (largest, columns))
    known = (inputs > 0) & (outputs > 0)
    ratio = np.where(known, inputs, 1) ** STRENGTH / np.where(known, outputs, 1) ** (1 - STRENGTH)
    scale: Floats = np.clip(ratio, 1e-5, 1e5).astype(np.float32)
    return scale


def _shared(values: NDArray[np.float32], heads: int, size: int) -> NDArray[np.float32]:
    if heads == 1:
        return values
    parts = values.reshape(-1, heads, size)
    return np.repeat(parts.max(axis=1, keepdims=True), heads, axis=1).ravel()
