"""Products of 8-bit matrices. Integers add up the same in any order; floats are added in the order of the groups alone.

So a row's numbers do not depend on how many rows there are. Weights (o, i) lie as [o / 16][i / 4][16][4], with 128 added, since
the instruction takes one unsigned operand. Activations have a scale a row and a group of `GROUP` columns (per-token dynamic
quantization, as in ZeroQuant, Yao et al. 2022, section 4.2, here by group), weights one an output.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.int8.vectors import (
    LANES,
    add_scaled,
    broadcast_bytes,
    dot_bytes,
    floats,
    ints,
    load_bytes,
    load_floats,
    store_floats,
    times,
)

GROUP = 16
"""Columns that share a scale of an activation: the fewer, the nearer to float32, and the more floats are added."""

Bytes = NDArray[np.int8]
Floats = NDArray[np.float32]


def pack(weight: Bytes) -> NDArray[np.uint8]:
    """Weights (o, i) in the order of the kernel, outputs filled up to a multiple of 32 and inputs to one of `GROUP`."""
    outputs, inputs = weight.shape
    full = np.zeros((-(-outputs // (2 * LANES)) * 2 * LANES, -(-inputs // GROUP) * GROUP), np.int8)
    full[:outputs, :inputs] = weight
    ordered = full.reshape(full.shape[0] // LANES, LANES, full.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return (np.ascontiguousarray(ordered).astype(np.int16) + 128).astype(np.uint8).reshape(-1)


@numba.njit(cache=True, error_model="numpy")
def quantize(x: Floats, q: Bytes, scales: Floats, sums: NDArray[np.int32]) -> None:
    """Rows of x (n, i) to bytes q (n, padded i), their scales and -128 times their sums (n, groups)."""
    for row in range(x.shape[0]):
        for group in range(scales.shape[1]):
            start, end = group * GROUP, min((group + 1) * GROUP, x.shape[1])
            largest = np.float32(0)
            for at in range(start, end):
                largest = max(largest, abs(x[row, at]))
            scale = largest / np.float32(127)
            inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
            total = np.int32(0)
            for at in range(start, end):
                value = np.int32(np.rint(x[row, at] * inverse))
                q[row, at] = value
                total += value
            scales[row, group] = scale
            sums[row, group] = np.int32(-128) * total


@numba.njit(cache=True, error_model="numpy", boundscheck=False)
def product(
    q: Bytes, scales: Floats, sums: NDArray[np.int32], packed: NDArray[np.uint8], weight_scales: Floats, out: Floats
) -> None:
    """out (n, o) = x (n, i) times weights (o, i) transposed; o is a multiple of 32. All arrays are contiguous."""
    rows, width = q.shape
    groups, outputs = scales.shape[1], out.shape[1]
    flat_q, flat_out = q.reshape(-1), out.reshape(-1)
    block = width * LANES
    for pair in range(outputs // (2 * LANES)):
        first, second = 2 * pair * block, (2 * pair + 1) * block
        scale_0, scale_1 = load_floats(weight_scales, 2 * pair * LANES), load_floats(weight_scales, (2 * pair + 1) * LANES)
        row = 0
        while row + 4 <= rows:
            a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = floats(np.float32(0))
            at_a, at_b, at_c, at_d = row * width, (row + 1) * width, (row + 2) * width, (row + 3) * width
            for group in range(groups):
                i0 = i1 = ints(sums[row, group])
                j0 = j1 = ints(sums[row + 1, group])
                k0 = k1 = ints(sums[row + 2, group])
                l0 = l1 = ints(sums[row + 3, group])
                for at in range(group * GROUP, (group + 1) * GROUP, 4):
                    w0, w1 = load_bytes(packed, first + at * LANES), load_bytes(packed, second + at * LANES)
                    x = broadcast_bytes(flat_q, at_a + at)
                    i0, i1 = dot_bytes(i0, w0, x), dot_bytes(i1, w1, x)
                    x = broadcast_bytes(flat_q, at_b + at)
                    j0, j1 = dot_bytes(j0, w0, x), dot_bytes(j1, w1, x)
                    x = broadcast_bytes(flat_q, at_c + at)
                    k0, k1 = dot_bytes(k0, w0, x), dot_bytes(k1, w1, x)
                    x = broadcast_bytes(flat_q, at_d + at)
                    l0, l1 = dot_bytes(l0, w0, x), dot_bytes(l1, w1, x)
                s = floats(scales[row, group])
                a0, a1 = add_scaled(a0, i0, s), add_scaled(a1, i1, s)
                s = floats(scales[row + 1, group])
                b0, b1 = add_scaled(b0, j0, s), add_scaled(b1, j1, s)
                s = floats(scales[row + 2, group])
                c0, c1 = add_scaled(c0, k0, s), add_scaled(c1, k1, s)
                s = floats(scales[row + 3, group])
                d0, d1 = add_scaled(d0, l0, s), add_scaled(d1, l1, s)
            place = row * outputs + 2 * pair * LANES
            store_floats(flat_out, place, times(a0, scale_0))
            store_floats(flat_out, place + LANES, times(a1, scale_1))
            store_floats(flat_out, place + outputs, times(b0, scale_0))
            store_floats(flat_out, place + outputs + LANES, times(b1, scale_1))
            store_floats(flat_out, place + 2 * outputs, times(c0, scale_0))
            store_floats(flat_out, place + 2 * outputs + LANES, times(c1, scale_1))
            store_floats(flat_out, place + 3 * outputs, times(d0, scale_0))
            store_floats(flat_out, place + 3 * outputs + LANES, times(d1, scale_1))
            row += 4
        while row < rows:
            a0 = a1 = floats(np.float32(0))
            for group in range(groups):
                i0 = i1 = ints(sums[row, group])
                for at in range(group * GROUP, (group + 1) * GROUP, 4):
                    x = broadcast_bytes(flat_q, row * width + at)
                    i0 = dot_bytes(i0, load_bytes(packed, first + at * LANES), x)
                    i1 = dot_bytes(i1, load_bytes(packed, second + at * LANES), x)
                s = floats(scales[row, group])
                a0, a1 = add_scaled(a0, i0, s), add_scaled(a1, i1, s)
            place = row * outputs + 2 * pair * LANES
            store_floats(flat_out, place, times(a0, scale_0))
            store_floats(flat_out, place + LANES, times(a1, scale_1))
            row += 1
