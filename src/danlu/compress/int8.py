"""Float weights to 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Quantized(NamedTuple):
    """A model's arrays as they are stored, and of each matrix how far it is off."""

    arrays: dict[str, NDArray[Any]]
    errors: dict[str, float]
    """Root of (sum of squared differences / sum of squares)."""


def quantize(weights: Mapping[str, Floats]) -> Quantized:
    """Every matrix (o, i) to int8 and one scale an output: symmetric, the largest value of a row becomes 127."""
    arrays: dict[str, NDArray[Any]] = {}
    errors = {}
    for name, weight in weights.items():
        if weight.ndim != 2:
            arrays[name] = weight.astype(np.float32)
            continue
        scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
        numbers = np.rint(weight / np.where(scale > 0, scale, 1)).astype(np.int8)
        arrays[name], arrays[f"{name}_scale"] = numbers, scale.astype(np.float32)
        total = float((weight.astype(np.float64) ** 2).sum())
        errors[name] = (float(((numbers * scale - weight).astype(np.float64) ** 2).sum()) / total) ** 0.5 if total else 0.0
    return Quantized(arrays, errors)
