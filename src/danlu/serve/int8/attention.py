"""Attention over a cache in blocks, row by row: the scores of a block's 16 keys are one vector.

So keys lie with their 16 positions side by side, (blocks, g, k, BLOCK), and values as they are added up, (blocks, g, BLOCK, k).
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
    load_floats,
    plus,
    store_floats,
    times,
)

Ints = NDArray[np.int32]
_compiled = numba.njit(cache=True, error_model="numpy", boundscheck=False)
assert BLOCK == LANES


@_compiled
def attend(
    x: Floats, heads: int, keys: Floats, values: Floats, positions: Ints, tables: Ints, owners: Ints, window: int, out: Floats
) -> None:
    """Attention of rows to all positions up to their own, or to the ``window`` last of them (0: all)."""
    groups, size = keys.shape[1], keys.shape[2]
    scores = np.empty((positions.max() // BLOCK + 1) * BLOCK if len(positions) else 0, np.float32)
    lanes = np.empty(LANES, np.float32)
    for row in range(len(positions)):
        end = positions[row] + 1
        begin = max(0, end - window) if window else 0
        table = tables[owners[row], begin // BLOCK : (end - 1) // BLOCK + 1]
        skipped = begin // BLOCK * BLOCK
        for head in range(heads):
            group, query = head // (heads // groups), x[row, head * size : (head + 1) * size]
            _score(query, keys, table, group, scores)
            scores[: begin - skipped] = -np.inf
            scores[end - skipped : len(table) * BLOCK] = -np.inf
            mass = _weigh(scores, len(table), lanes)
            _add_up(scores, values, table, group, np.float32(1) / mass, out[row, head * size : (head + 1) * size])


@_compiled
def _score(query: Floats, keys: Floats, table: Ints, group: int, scores: Floats) -> None:
    """Products of a query (k,) with the keys of the blocks, over the root of k."""
    groups, size = keys.shape[1], keys.shape[2]
    flat = keys.reshape(-1)
    factor = floats(np.float32(1 / math.sqrt(size)))
    for at in range(len(table)):
        start = (np.int64(table[at]) * groups + group) * size * BLOCK
        a = b = floats(np.float32(0))  # two sums, as one would wait for itself
        for i in range(0, size, 2):  # heads are of an even size, as they are rotated in pairs
            a = add_product(a, load_floats(flat, start + i * BLOCK), floats(query[i]))
            b = add_product(b, load_floats(flat, start + (i + 1) * BLOCK), floats(query[i + 1]))
        store_floats(scores, at * BLOCK, times(plus(a, b), factor))


@_compiled
def _weigh(scores: Floats, blocks: int, lanes: Floats) -> np.float32:
    """Scores to what they weigh beside the largest, which weighs 1; returns the sum."""
    top = load_floats(scores, 0)
    for at in range(1, blocks):
        top = larger(top, load_floats(scores, at * BLOCK))
    store_floats(lanes, 0, top)
    largest = lanes[0]
    for lane in range(1, LANES):
        largest = max(largest, lanes[lane])
    total, less = floats(np.float32(0)), floats(-largest)
    for at in range(blocks):
        weights = exponential(plus(load_floats(scores, at * BLOCK), less))
        store_floats(scores, at * BLOCK, weights)
        total = plus(total, weights)
    store_floats(lanes, 0, total)
    mass = np.float32(0)
    for lane in range(LANES):
        mass += lanes[lane]
    return mass


@_compiled
def _add_up(weights: Floats, values: Floats, table: Ints, group: int, factor: np.float32, out: Floats) -> None:
    """The sum of the values (k,) by their weights, times the factor."""
    groups, size = values.shape[1], values.shape[3]
    flat = values.reshape(-1)
    whole = size // LANES * LANES
    for column in range(0, whole, LANES):
        a = b = floats(np.float32(0))
        for at in range(len(table)):
            start = (np.int64(table[at]) * groups + group) * BLOCK * size + column
            for place in range(0, BLOCK, 2):
                a = add_product(a, load_floats(flat, start + place * size), floats(weights[at * BLOCK + place]))
                b = add_product(b, load_floats(flat, start + (place + 1) * size), floats(weights[at * BLOCK + place + 1]))
        store_floats(out, column, times(plus(a, b), floats(factor)))
    for column in range(whole, size):
        total = np.float32(0)
        for at in range(len(table)):
            start = (np.int64(table[at]) * groups + group) * BLOCK * size + column
            for place in range(BLOCK):
                total += flat[start + place * size] * weights[at * BLOCK + place]
        out[column] = total * factor
