"""What a decoder layer computes beside its matrix products, for one row, so that no row depends on another's presence.

Shapes: d hidden, h query heads, g key/value heads, k head size. The cache is (blocks, g, k, BLOCK) for keys and
(blocks, g, BLOCK, k) for values.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.executor import BLOCK
from danlu.serve.int8.product import Bytes, Floats
from danlu.serve.int8.vectors import (
    LANES,
    exponential,
    floats,
    load_floats,
    magnitude,
    minus,
    over,
    plus,
    store_floats,
    times,
    where_negative,
)

Ints = NDArray[np.int32]
_compiled = numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""Sums may be split into lanes; how they are is fixed when this is compiled, and the same for every row."""


@_compiled
def embed(token: int, table: Bytes, scales: Floats, out: Floats) -> None:
    """A row of the embedding, back from bytes."""
    for at in range(len(out)):
        out[at] = table[token, at] * scales[token]


@_compiled
def normalise(x: Floats, weight: Floats, epsilon: float, out: Floats) -> None:
    """RMSNorm (Zhang & Sennrich 2019); ``out`` may be longer, and is filled up with zeros."""
    width = len(x)
    total = np.float32(0)
    for at in range(width):
        total += x[at] * x[at]
    factor = np.float32(1 / math.sqrt(total / width + epsilon))
    for at in range(width):
        out[at] = x[at] * factor * weight[at]
    out[width:] = 0


@_compiled
def add(x: Floats, more: Floats) -> None:
    """x += more, where more may be longer."""
    for at in range(len(x)):
        x[at] += more[at]


@numba.njit(cache=True, error_model="numpy", boundscheck=False)
def gate(gate_up: Floats, width: int, out: Floats) -> None:
    """SwiGLU (Shazeer 2020) of the gate's outputs and then the others; ``out`` may be longer, and is filled up with zeros."""
    one = floats(np.float32(1))
    for at in range(0, width // LANES * LANES, LANES):
        value = load_floats(gate_up, at)
        small = exponential(minus(magnitude(value)))
        share = over(where_negative(value, small, one), plus(one, small))  # the logistic function, without large numbers
        store_floats(out, at, times(times(value, share), load_floats(gate_up, width + at)))
    for at in range(width // LANES * LANES, width):
        out[at] = gate_up[at] / (np.float32(1) + math.exp(-gate_up[at])) * gate_up[width + at]
    out[width:] = 0


@_compiled
def turn(x: Floats, first: int, heads: int, norm: Floats, epsilon: float, cos: Floats, sin: Floats, interleaved: bool) -> None:
    """Normalise (an empty norm: not) and rotate heads in place; the first begins at ``first``.

    The pairs of a head are (i, i + k/2), or (2 i, 2 i + 1).
    """
    half = len(cos)
    near, apart = (2, 1) if interleaved else (1, half)
    for head in range(heads):
        start = first + head * 2 * half
        if len(norm):
            total = np.float32(0)
            for at in range(2 * half):
                total += x[start + at] * x[start + at]
            factor = np.float32(1 / math.sqrt(total / (2 * half) + epsilon))
            for at in range(2 * half):
                x[start + at] *= factor * norm[at]
        for at in range(half):
            here = start + at * near
            one, two = x[here], x[here + apart]
            x[here] = one * cos[at] - two * sin[at]
            x[here + apart] = two * cos[at] + one * sin[at]


@_compiled
def remember(x: Floats, first: int, keys: Floats, values: Floats, position: int, table: Ints) -> None:
    """Write a row's keys, from ``first`` on, and the values that follow them, into the cache."""
    _, heads, size, _ = keys.shape
    block, place = table[position // BLOCK], position % BLOCK
    for head in range(heads):
        key = first + head * size
        value = key + heads * size
        for at in range(size):
            keys[block, head, at, place] = x[key + at]
            values[block, head, place, at] = x[value + at]
