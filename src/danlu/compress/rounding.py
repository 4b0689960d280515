"""Float weights to few bits: integers with a scale for each row, or for each group of a row's inputs.

Shapes: o outputs, i inputs, g groups of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Scales = NDArray[np.floating[Any]]
Numbers = NDArray[np.int8]

RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Where there are few steps, cutting off a group's largest values can serve the others: of its largest, what is tried."""


def scales(weight: Floats, bits: int, group: int, importance: NDArray[np.float64] | None = None) -> Scales:
    """What the integers of each group of a row are multiplied by, (o, g); ``group`` 0 is all of a row.

    With 8 bits the largest value becomes 127. With 4 it is that of `RATIOS` with the least sum of squared errors, each weighed
    by the ``importance`` (i,) of its input. Of groups they are float16, as there are many, where that can hold them.
    """
    outputs, inputs = weight.shape
    parts = weight.reshape(outputs, -1, group or inputs)
    most = 2 ** (bits - 1) - 1
    largest = _storable(np.abs(parts).max(axis=2) / np.float32(most), bool(group))
    if bits == 8:
        return largest
    weights = np.ones(inputs) if importance is None else importance
    best, least = largest, np.full(largest.shape, np.inf)
    for ratio in RATIOS:
        tried = _storable(largest.astype(np.float32) * np.float32(ratio), bool(group))
        wrong = (restore(nearest(weight, tried, bits), tried) - weight).astype(np.float64) ** 2 * weights
        sums = wrong.reshape(parts.shape).sum(axis=2)
        best, least = np.where(sums < least, tried, best), np.minimum(sums, least)
    return best


def nearest(weight: Floats, scale: Scales, bits: int) -> Numbers:
    """Each value to the nearest integer of its group (o, i)."""
    return to_integers(weight / spread(np.where(scale > 0, scale, 1).astype(np.float32), weight.shape[1]), bits)


def to_integers(values: NDArray[Any], bits: int) -> Numbers:
    """Rounded, and cut off at what so many bits hold; -128 is left out, as kernels may want to change signs."""
    half = 2 ** (bits - 1)
    numbers: Numbers = np.rint(values).clip(-half if bits == 4 else 1 - half, half - 1).astype(np.int8)
    return numbers


def restore(numbers: Numbers, scale: Scales) -> Floats:
    """The floats (o, i) that integers stand for."""
    weight: Floats = numbers * spread(scale.astype(np.float32), numbers.shape[1])
    return weight


def spread(scale: NDArray[Any], inputs: int) -> NDArray[Any]:
    """A scale for each input, (o, i)."""
    return np.repeat(scale, inputs // scale.shape[1], axis=1)


def relative_error(weight: Floats, restored: Floats, hessian: NDArray[np.float64] | None = None) -> float:
    """Root of (sum of squared differences / sum of squares): of the weights, or, with x x^T on average, of the outputs."""
    wrong, right = restored.astype(np.float64) - weight, weight.astype(np.float64)
    if hessian is None:
        error, total = float((wrong**2).sum()), float((right**2).sum())
    else:
        error, total = float(((wrong @ hessian) * wrong).sum()), float(((right @ hessian) * right).sum())
    return float((max(error, 0.0) / total) ** 0.5) if total > 0 else 0.0


def _storable(scale: Floats, grouped: bool) -> Scales:
    if not grouped:
        return scale.astype(np.float32)
    positive = scale[scale > 0]
    limits = np.finfo(np.float16)
    fits = not positive.size or (positive.min() >= limits.smallest_normal and positive.max() <= limits.max)
    return scale.astype(np.float16 if fits else np.float32)
