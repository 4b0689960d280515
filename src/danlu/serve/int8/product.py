"""Products of 8-bit matrices. Integers add up the same in any order; floats are added in the order of the groups alone.

So a row's numbers do not depend on how many rows there are, nor on who computes which outputs. Weights (o, i) lie as
[o / 32][i / 4][2][16][4], in the order in which they are read, with 128 added, since the instruction takes one unsigned operand.
Activations have a scale a row and a group of `GROUP` columns (per-token dynamic quantization, as in ZeroQuant, Yao et al. 2022,
section 4.2, here by group), weights one an output. Their rows lie in tiles of `ROWS`, group by group.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.int8.tile import GROUP, LINE, OUTPUTS, ROWS, add_group, no_sums, store_sums
from danlu.serve.int8.vectors import LANES, floats, larger, largest, load_floats, magnitude, store_rounded, times

Bytes = NDArray[np.int8]
Floats = NDArray[np.float32]
_compiled = numba.njit(cache=True, error_model="numpy", boundscheck=False)


class Rounded(NamedTuple):
    """Activations of 8 bits, of up to so many tiles of rows: value = q * scale."""

    q: Bytes
    """(tiles * groups * ROWS * GROUP)"""
    scales: Floats
    """(tiles * groups * ROWS)"""
    shifts: NDArray[np.int32]
    """-128 times the sums of q: what the 128 that is added to the weights makes of it."""


def room(rows: int, inputs: int) -> Rounded:
    """For so many rows."""
    count = -(-rows // ROWS) * ROWS * -(-inputs // GROUP)
    return Rounded(np.zeros(count * GROUP, np.int8), np.zeros(count, np.float32), np.zeros(count, np.int32))


def pack(weight: Bytes) -> NDArray[np.uint8]:
    """Weights (o, i) in the order of the kernel, outputs filled up to a multiple of 32 and inputs to one of `GROUP`."""
    outputs, inputs = weight.shape
    full = np.zeros((-(-outputs // OUTPUTS) * OUTPUTS, -(-inputs // GROUP) * GROUP), np.int8)
    full[:outputs, :inputs] = weight
    ordered = full.reshape(-1, 2, LANES, full.shape[1] // 4, 4).transpose(0, 3, 1, 2, 4)
    return (np.ascontiguousarray(ordered).view(np.uint8) ^ np.uint8(128)).reshape(-1)


@_compiled
def quantize(x: Floats, row: int, groups: int, out: Rounded) -> None:
    """A row x, filled up with zeros to so many groups, to bytes, scales and shifts."""
    for group in range(groups):
        place = (row // ROWS * groups + group) * ROWS + row % ROWS
        most = floats(np.float32(0))
        for at in range(group * GROUP, (group + 1) * GROUP, LANES):
            most = larger(most, magnitude(load_floats(x, at)))
        top = largest(most)
        inverse = floats(np.float32(127) / top if top > 0 else np.float32(0))
        total = np.int32(0)
        for at in range(0, GROUP, LANES):
            total += store_rounded(out.q, place * GROUP + at, times(load_floats(x, group * GROUP + at), inverse))
        out.scales[place] = top / np.float32(127)
        out.shifts[place] = np.int32(-128) * total


@_compiled
def product(
    x: Rounded, rows: int, weights: NDArray[np.uint8], scales: Floats, bias: Floats, out: Floats, first: int, last: int
) -> None:
    """out (n, o) = x (n, i) times weights (o, i) transposed, plus the bias (o), for outputs 32 * first to 32 * last."""
    outputs = out.shape[1]
    flat = out.reshape(-1)
    size = len(weights) // (outputs // OUTPUTS)
    groups = size // (OUTPUTS * GROUP)
    tiles = (rows + ROWS - 1) // ROWS
    # While tiles of rows meet some weights, each fetches its share of the next ones; one alone leaves that to the processor.
    share = LINE * max(1, OUTPUTS * GROUP // LINE // tiles)
    for pair in range(first, last):
        start = pair * size
        for tile in range(tiles):
            ahead = start if tiles == 1 else start + size + tile * share % (OUTPUTS * GROUP) * groups
            at, left = tile * ROWS * outputs, rows - tile * ROWS
            if left >= ROWS:
                sums = _multiply(no_sums(ROWS), x, tile, groups, weights, start, ahead, share)
                store_sums(sums, flat, at, outputs, scales, bias, pair)
            elif left == 3:
                three = _multiply(no_sums(3), x, tile, groups, weights, start, ahead, share)
                store_sums(three, flat, at, outputs, scales, bias, pair)
            elif left == 2:
                two = _multiply(no_sums(2), x, tile, groups, weights, start, ahead, share)
                store_sums(two, flat, at, outputs, scales, bias, pair)
            else:
                one = _multiply(no_sums(1), x, tile, groups, weights, start, ahead, share)
                store_sums(one, flat, at, outputs, scales, bias, pair)


@_compiled
def _multiply(sums, x, tile, groups, weights, start, ahead, share):  # type: ignore[no-untyped-def]  # sums are of the compiler's
    """Sums of one tile of rows over all groups of columns."""
    for group in range(groups):
        at = (tile * groups + group) * ROWS
        sums = add_group(sums, x.q, x.scales, x.shifts, at, weights, start + group * OUTPUTS * GROUP, ahead + group * share)
    return sums
