"""One step of the whole model, compiled: what every thread runs for its rows and outputs.

Rows are dealt out in turn, outputs of a product in equal parts, heads by groups; sums are never divided, so the numbers are the
same however many threads there are. Shapes: n rows, l layers, d hidden, f feed-forward, h query heads, g key/value heads,
k head size.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from danlu.serve.int8 import layer as rows
from danlu.serve.int8.attention import Ints, attend
from danlu.serve.int8.crew import Counter, meet
from danlu.serve.int8.product import Bytes, Floats, Rounded, product, quantize
from danlu.serve.int8.tile import GROUP, OUTPUTS

_compiled = numba.njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)


class Linear(NamedTuple):
    """One projection, or several of the same input as one, of all layers; outputs o are filled up to a multiple of 32."""

    weights: NDArray[np.uint8]
    """(l, packed)"""
    scales: Floats
    """(l, o)"""
    bias: Floats
    """(l, o), zeros where there is none."""


class Weights(NamedTuple):
    """All that a model has learnt, and what of its shape the kernels need."""

    embedding: Bytes
    embedding_scales: Floats
    before: Floats
    """(l, d), the norm before attention."""
    qkv: Linear
    q_norm: Floats
    """(l, k), or (l, 0) without."""
    k_norm: Floats
    output: Linear
    after: Floats
    """(l, d), the norm after attention."""
    gate_up: Linear
    down: Linear
    norm: Floats
    head: Linear
    """Of one layer."""
    windows: NDArray[np.int64]
    """(l), positions that attention reaches back; 0: all."""
    heads: int
    ffn: int
    epsilon: float
    interleaved: bool


class Batch(NamedTuple):
    """The rows of a step."""

    tokens: Ints
    positions: Ints
    owners: Ints
    """Which of the tables is a row's."""
    tables: Ints
    cos: Floats
    """(n, k / 2)"""
    sin: Floats
    wanted: Ints
    """Rows of which the logits are."""


class Room(NamedTuple):
    """Where a step keeps what it computes, for at least as many rows as it has."""

    x: Floats
    """(n, d), what the layers add to."""
    normal: Rounded
    """Normalised rows, what enters a layer's products and the head."""
    qkv: Floats
    attended: Floats
    mixed: Rounded
    """What attention gives, rounded."""
    delta: Floats
    """What a layer adds, filled up."""
    gate_up: Floats
    gated: Rounded
    lines: Floats
    """A row for each thread."""
    scores: Floats
    """(threads, positions)"""


@_compiled
def step(
    model: Weights,
    keys: Floats,
    values: Floats,
    batch: Batch,
    room: Room,
    logits: Floats,
    arrived: Counter,
    thread: int,
    threads: int,
) -> None:
    """Compute the rows, put their keys (l, blocks, g, k, BLOCK) and values into the cache, and write the wanted logits."""
    n = len(batch.tokens)
    goal = 0
    for row in range(thread, n, threads):
        rows.embed(batch.tokens[row], model.embedding, model.embedding_scales, room.x[row])
        _normal(room.x[row], model.before[0], model.epsilon, room.lines[thread], row, room.normal)
    for number in range(len(model.before)):
        goal = meet(arrived, goal, threads)
        _product(room.normal, n, model.qkv, number, room.qkv, thread, threads)
        goal = meet(arrived, goal, threads)
        for row in range(thread, n, threads):
            _place(model, number, room.qkv[row], batch, row, keys[number], values[number])
        goal = meet(arrived, goal, threads)
        _attend(model, number, keys[number], values[number], batch, room, thread, threads)
        goal = meet(arrived, goal, threads)
        for row in range(thread, n, threads):
            _round(room.attended[row], room.lines[thread], row, room.mixed)
        goal = meet(arrived, goal, threads)
        _product(room.mixed, n, model.output, number, room.delta, thread, threads)
        goal = meet(arrived, goal, threads)
        for row in range(thread, n, threads):
            rows.add(room.x[row], room.delta[row])
            _normal(room.x[row], model.after[number], model.epsilon, room.lines[thread], row, room.normal)
        goal = meet(arrived, goal, threads)
        _product(room.normal, n, model.gate_up, number, room.gate_up, thread, threads)
        goal = meet(arrived, goal, threads)
        for row in range(thread, n, threads):
            line = room.lines[thread, : -(-model.ffn // GROUP) * GROUP]
            rows.gate(room.gate_up[row], model.ffn, line)
            quantize(line, row, len(line) // GROUP, room.gated)
        goal = meet(arrived, goal, threads)
        _product(room.gated, n, model.down, number, room.delta, thread, threads)
        goal = meet(arrived, goal, threads)
        following = model.before[(number + 1) % len(model.before)]  # after the last layer, nothing comes of it
        for row in range(thread, n, threads):
            rows.add(room.x[row], room.delta[row])
            _normal(room.x[row], following, model.epsilon, room.lines[thread], row, room.normal)
    goal = meet(arrived, goal, threads)
    for at in range(thread, len(batch.wanted), threads):
        _normal(room.x[batch.wanted[at]], model.norm, model.epsilon, room.lines[thread], at, room.normal)
    goal = meet(arrived, goal, threads)
    if len(batch.wanted):
        _product(room.normal, len(batch.wanted), model.head, 0, logits, thread, threads)


@_compiled
def _normal(x: Floats, weight: Floats, epsilon: float, line: Floats, row: int, out: Rounded) -> None:
    """A row normalised and rounded."""
    line = line[: -(-len(x) // GROUP) * GROUP]
    rows.normalise(x, weight, epsilon, line)
    quantize(line, row, len(line) // GROUP, out)


@_compiled
def _round(x: Floats, line: Floats, row: int, out: Rounded) -> None:
    line = line[: -(-len(x) // GROUP) * GROUP]
    line[: len(x)] = x
    line[len(x) :] = 0
    quantize(line, row, len(line) // GROUP, out)


@_compiled
def _product(x: Rounded, n: int, linear: Linear, number: int, out: Floats, thread: int, threads: int) -> None:
    """This thread's part of the outputs of n rows."""
    pairs = out.shape[1] // OUTPUTS
    first, last = pairs * thread // threads, pairs * (thread + 1) // threads
    product(x, n, linear.weights[number], linear.scales[number], linear.bias[number], out, first, last)


@_compiled
def _place(model: Weights, number: int, qkv: Floats, batch: Batch, row: int, keys: Floats, values: Floats) -> None:
    """Turn a row's queries and keys, and put its keys and values into the cache."""
    groups, size = keys.shape[1], keys.shape[2]
    cos, sin, first = batch.cos[row], batch.sin[row], model.heads * size
    rows.turn(qkv, 0, model.heads, model.q_norm[number], model.epsilon, cos, sin, model.interleaved)
    rows.turn(qkv, first, groups, model.k_norm[number], model.epsilon, cos, sin, model.interleaved)
    rows.remember(qkv, first, keys, values, batch.positions[row], batch.tables[batch.owners[row]])


@_compiled
def _attend(
    model: Weights, number: int, keys: Floats, values: Floats, batch: Batch, room: Room, thread: int, threads: int
) -> None:
    """This thread's part of the groups of heads of all rows."""
    groups = keys.shape[1]
    for task in range(thread, len(batch.tokens) * groups, threads):
        row, group = task // groups, task % groups
        position, table = batch.positions[row], batch.tables[batch.owners[row]]
        attend(
            room.qkv[row],
            model.heads,
            group,
            keys,
            values,
            position,
            table,
            model.windows[number],
            room.scores[thread],
            room.attended[row],
        )
