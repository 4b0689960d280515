"""What a decoder layer computes beside its matrix products, row by row, so that no row depends on another's presence.

Shapes: n rows, d hidden, h query heads, g key/value heads, k head size. The cache is (blocks, g, k, BLOCK) for keys and
(blocks, g, BLOCK, k) for values.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.executor import BLOCK
from danlu.serve.int8.product import Bytes, Floats

Ints = NDArray[np.int32]
_compiled = numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""Sums may be split into lanes; how they are is fixed when this is compiled, and the same for every row."""


@_compiled
def embed(tokens: Ints, table: Bytes, scales: Floats, out: Floats) -> None:
    """Rows of the embedding, back from bytes."""
    for row in range(len(tokens)):
        for at in range(out.shape[1]):
            out[row, at] = table[tokens[row], at] * scales[tokens[row]]


@_compiled
def normalise(x: Floats, weight: Floats, epsilon: float, out: Floats) -> None:
    """RMSNorm of rows (Zhang & Sennrich 2019)."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = np.float32(0)
        for at in range(width):
            total += x[row, at] * x[row, at]
        factor = np.float32(1 / math.sqrt(total / width + epsilon))
        for at in range(width):
            out[row, at] = x[row, at] * factor * weight[at]


@_compiled
def add(x: Floats, more: Floats) -> None:
    """x += more, where more may be wider (it is filled up)."""
    for row in range(x.shape[0]):
        for at in range(x.shape[1]):
            x[row, at] += more[row, at]


@_compiled
def add_bias(x: Floats, bias: Floats) -> None:
    """x += bias in every row; an empty bias is none."""
    for row in range(x.shape[0] if len(bias) else 0):
        for at in range(len(bias)):
            x[row, at] += bias[at]


@_compiled
def gate(gate_up: Floats, out: Floats) -> None:
    """SwiGLU (Shazeer 2020) of rows that hold the gate's outputs and then the others."""
    width = out.shape[1]
    for row in range(out.shape[0]):
        for at in range(width):
            value = gate_up[row, at]
            out[row, at] = value / (np.float32(1) + math.exp(-value)) * gate_up[row, width + at]


@_compiled
def turn(x: Floats, first: int, heads: int, norm: Floats, epsilon: float, cos: Floats, sin: Floats, interleaved: bool) -> None:
    """Normalise (an empty norm: not) and rotate heads of rows in place; the first begins at column ``first``.

    The pairs of a head are (i, i + k/2), or (2 i, 2 i + 1).
    """
    half = cos.shape[1]
    near, apart = (2, 1) if interleaved else (1, half)
    for row in range(x.shape[0]):
        for head in range(heads):
            start = first + head * 2 * half
            if len(norm):
                total = np.float32(0)
                for at in range(2 * half):
                    total += x[row, start + at] * x[row, start + at]
                factor = np.float32(1 / math.sqrt(total / (2 * half) + epsilon))
                for at in range(2 * half):
                    x[row, start + at] *= factor * norm[at]
            for at in range(half):
                here = start + at * near
                one, two = x[row, here], x[row, here + apart]
                x[row, here] = one * cos[row, at] - two * sin[row, at]
                x[row, here + apart] = two * cos[row, at] + one * sin[row, at]


@_compiled
def remember_keys(x: Floats, first: int, cache: Floats, positions: Ints, tables: Ints, owners: Ints) -> None:
    """Write heads of rows, from column ``first`` on, into the cache of keys (blocks, g, k, BLOCK)."""
    _, heads, size, _ = cache.shape
    for row in range(len(positions)):
        block, place = tables[owners[row], positions[row] // BLOCK], positions[row] % BLOCK
        for head in range(heads):
            for at in range(size):
                cache[block, head, at, place] = x[row, first + head * size + at]


@_compiled
def remember_values(x: Floats, first: int, cache: Floats, positions: Ints, tables: Ints, owners: Ints) -> None:
    """Write heads of rows, from column ``first`` on, into the cache of values (blocks, g, BLOCK, k)."""
    _, heads, _, size = cache.shape
    for row in range(len(positions)):
        block, place = tables[owners[row], positions[row] // BLOCK], positions[row] % BLOCK
        for head in range(heads):
            for at in range(size):
                cache[block, head, place, at] = x[row, first + head * size + at]
