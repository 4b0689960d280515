"""Attention over a cache in blocks, row by row: the scores of a block's 16 keys are one vector.

So keys lie with their 16 positions side by side, (blocks, g, k, BLOCK), and values as they are added up, (blocks, g, BLOCK, k).
Several blocks or columns are computed at a time, so that sums need not wait for each other; each is added up in the same order
however many there are.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.executor import BLOCK
from danlu.serve.int8.product import Floats
from danlu.serve.int8.vectors import (
    LANES,
    add_product,
    exponential,
    floats,
    larger,
    largest,
    load_floats,
    plus,
    store_floats,
    times,
    total,
)

Ints = NDArray[np.int32]
_compiled = numba.njit(cache=True, error_model="numpy", boundscheck=False)
assert BLOCK == LANES


@_compiled
def attend(
    x: Floats,
    heads: int,
    group: int,
    keys: Floats,
    values: Floats,
    position: int,
    table: Ints,
    window: int,
    scores: Floats,
    out: Floats,
) -> None:
    """Attention of a row's heads of one group to all positions up to its own, or to the ``window`` last of them (0: all).

    ``x`` begins with the row's queries; ``scores`` has room for as many numbers as there are positions in the table.
    """
    groups, size = keys.shape[1], keys.shape[2]
    end = position + 1
    begin = max(0, end - window) if window else 0
    skipped = begin // BLOCK * BLOCK
    used = table[begin // BLOCK : (end - 1) // BLOCK + 1]
    for head in range(group * (heads // groups), (group + 1) * (heads // groups)):
        _score(x, head * size, keys, used, group, scores)
        scores[: begin - skipped] = -np.inf
        scores[end - skipped : len(used) * BLOCK] = -np.inf
        mass = _weigh(scores, len(used))
        _add_up(scores, values, used, group, np.float32(1) / mass, out, head * size)


@_compiled
def _score(x: Floats, start: int, keys: Floats, table: Ints, group: int, scores: Floats) -> None:
    """Products of a query, the k numbers of x from ``start`` on, with the keys of the blocks, over the root of k."""
    groups, size = keys.shape[1], keys.shape[2]
    flat = keys.reshape(-1)
    factor = floats(np.float32(1 / math.sqrt(size)))
    count = len(table)
    at = 0
    while at + 4 <= count:
        a, b = _block(table, at, groups, group, size), _block(table, at + 1, groups, group, size)
        c, d = _block(table, at + 2, groups, group, size), _block(table, at + 3, groups, group, size)
        a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = floats(np.float32(0))
        for i in range(0, size, 2):  # heads are of an even size, as they are rotated in pairs
            even, odd = floats(x[start + i]), floats(x[start + i + 1])
            near, far = i * BLOCK, (i + 1) * BLOCK
            a0, a1 = add_product(a0, load_floats(flat, a + near), even), add_product(a1, load_floats(flat, a + far), odd)
            b0, b1 = add_product(b0, load_floats(flat, b + near), even), add_product(b1, load_floats(flat, b + far), odd)
            c0, c1 = add_product(c0, load_floats(flat, c + near), even), add_product(c1, load_floats(flat, c + far), odd)
            d0, d1 = add_product(d0, load_floats(flat, d + near), even), add_product(d1, load_floats(flat, d + far), odd)
        store_floats(scores, at * BLOCK, times(plus(a0, a1), factor))
        store_floats(scores, (at + 1) * BLOCK, times(plus(b0, b1), factor))
        store_floats(scores, (at + 2) * BLOCK, times(plus(c0, c1), factor))
        store_floats(scores, (at + 3) * BLOCK, times(plus(d0, d1), factor))
        at += 4
    while at < count:
        a = _block(table, at, groups, group, size)
        a0 = a1 = floats(np.float32(0))
        for i in range(0, size, 2):
            a0 = add_product(a0, load_floats(flat, a + i * BLOCK), floats(x[start + i]))
            a1 = add_product(a1, load_floats(flat, a + (i + 1) * BLOCK), floats(x[start + i + 1]))
        store_floats(scores, at * BLOCK, times(plus(a0, a1), factor))
        at += 1


@_compiled
def _block(table: Ints, at: int, groups: int, group: int, size: int) -> np.int64:
    """Where the numbers of a group in a block of the table begin."""
    return (np.int64(table[at]) * groups + group) * size * BLOCK


@_compiled
def _weigh(scores: Floats, blocks: int) -> np.float32:
    """Scores to what they weigh beside the largest, which weighs 1; returns the sum."""
    top = load_floats(scores, 0)
    for at in range(1, blocks):
        top = larger(top, load_floats(scores, at * BLOCK))
    mass, less = floats(np.float32(0)), floats(-largest(top))
    for at in range(blocks):
        weights = exponential(plus(load_floats(scores, at * BLOCK), less))
        store_floats(scores, at * BLOCK, weights)
        mass = plus(mass, weights)
    return total(mass)


@_compiled
def _add_up(weights: Floats, values: Floats, table: Ints, group: int, factor: np.float32, out: Floats, start: int) -> None:
    """The sum of the values (k,) by their weights, times the factor, to ``out`` from ``start`` on."""
    groups, size = values.shape[1], values.shape[3]
    flat = values.reshape(-1)
    scale = floats(factor)
    column = 0
    while column + 4 * LANES <= size:
        a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = floats(np.float32(0))
        for at in range(len(table)):
            first = _block(table, at, groups, group, size) + column
            for place in range(0, BLOCK, 2):
                even, odd = floats(weights[at * BLOCK + place]), floats(weights[at * BLOCK + place + 1])
                a, b = first + place * size, first + (place + 1) * size
                a0, a1 = add_product(a0, load_floats(flat, a), even), add_product(a1, load_floats(flat, b), odd)
                b0 = add_product(b0, load_floats(flat, a + LANES), even)
                b1 = add_product(b1, load_floats(flat, b + LANES), odd)
                c0 = add_product(c0, load_floats(flat, a + 2 * LANES), even)
                c1 = add_product(c1, load_floats(flat, b + 2 * LANES), odd)
                d0 = add_product(d0, load_floats(flat, a + 3 * LANES), even)
                d1 = add_product(d1, load_floats(flat, b + 3 * LANES), odd)
        store_floats(out, start + column, times(plus(a0, a1), scale))
        store_floats(out, start + column + LANES, times(plus(b0, b1), scale))
        store_floats(out, start + column + 2 * LANES, times(plus(c0, c1), scale))
        store_floats(out, start + column + 3 * LANES, times(plus(d0, d1), scale))
        column += 4 * LANES
    while column + LANES <= size:
        a0 = a1 = floats(np.float32(0))
        for at in range(len(table)):
            first = _block(table, at, groups, group, size) + column
            for place in range(0, BLOCK, 2):
                a0 = add_product(a0, load_floats(flat, first + place * size), floats(weights[at * BLOCK + place]))
                a1 = add_product(a1, load_floats(flat, first + (place + 1) * size), floats(weights[at * BLOCK + place + 1]))
        store_floats(out, start + column, times(plus(a0, a1), scale))
        column += LANES
    while column < size:
        mass = np.float32(0)
        for at in range(len(table)):
            first = _block(table, at, groups, group, size) + column
            for place in range(BLOCK):
                mass += flat[first + place * size] * weights[at * BLOCK + place]
        out[start + column] = mass * factor
        column += 1
