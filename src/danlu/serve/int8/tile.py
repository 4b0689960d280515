"""The innermost part of a product: up to `ROWS` rows of activations times 32 outputs, whose sums stay in registers.

Each weight that is loaded meets all rows. The functions here emit one straight run of instructions for a group of columns.
A tile's sums are a tuple of vectors: two, of 16 outputs each, for every row.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from danlu.serve.int8.vectors import F32, F32X16, FLOATS, I8, I32, I32X16, LANES, call, fma, splat

ROWS = 4
"""Rows of a tile: with more, sums and operands would not fit in the 32 registers."""
OUTPUTS = 2 * LANES
GROUP = 32
"""Columns that share a scale of an activation: the fewer, the nearer to float32, and the more floats are added."""
LINE = 64
"""Bytes of a cache line."""
FETCHED = 4
"""Lines of later weights that a full tile fetches from memory with each group of columns."""


@intrinsic(prefer_literal=True)
def no_sums(_: Any, rows: Any) -> Any:
    """The sums of a tile of so many rows, a number that is known when this is compiled, before anything is added."""
    kind = types.UniTuple(FLOATS, 2 * rows.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = [ir.Constant(F32X16, [0.0] * LANES)] * kind.count
        return context.make_tuple(builder, kind, zeros)

    return kind(rows), generate


@intrinsic
def add_group(_: Any, sums: Any, q: Any, scales: Any, shifts: Any, at: Any, weights: Any, start: Any, ahead: Any) -> Any:
    """The sums plus the products of one group of columns.

    ``at`` counts groups times `ROWS`; ``start`` is where the group's weights are, and ``ahead`` what is fetched meanwhile.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(number: int, index: Any) -> Any:
            data = cgutils.create_struct_proxy(signature.args[number])(context, builder, arguments[number]).data
            return builder.gep(data, [index])

        def load(base: Any, offset: int, kind: Any) -> Any:
            place = builder.gep(base, [ir.Constant(at_index.type, offset)])
            return builder.load(builder.bitcast(place, kind.as_pointer()), align=1)

        before, at_index = arguments[0], arguments[4]
        rows = sums.count // 2
        values = pointer(1, builder.mul(at_index, ir.Constant(at_index.type, GROUP)))
        row_scales, row_shifts = pointer(2, at_index), pointer(3, at_index)
        matrix = pointer(5, arguments[6])
        if rows == ROWS:
            _fetch(builder, pointer(5, arguments[7]))
        totals = [splat(builder, load(row_shifts, row, I32), I32X16) for row in range(rows) for _ in range(2)]
        for column in range(0, GROUP, 4):
            pair = [load(matrix, column * OUTPUTS + side * LINE, I32X16) for side in range(2)]
            for row in range(rows):
                x = splat(builder, load(values, row * GROUP + column, I32), I32X16)
                for side in range(2):
                    totals[2 * row + side] = _dot(builder, totals[2 * row + side], pair[side], x)
        after = before
        for row in range(rows):
            scale = splat(builder, load(row_scales, row, F32), F32X16)
            for number in (2 * row, 2 * row + 1):
                total = fma(builder, builder.sitofp(totals[number], F32X16), scale, builder.extract_value(before, number))
                after = builder.insert_value(after, total, number)
        return after

    return sums(sums, q, scales, shifts, at, weights, start, ahead), generate


@intrinsic
def store_sums(_: Any, sums: Any, out: Any, at: Any, stride: Any, scales: Any, bias: Any, pair: Any) -> Any:
    """Write the sums times the scales plus the bias of these 32 outputs; rows are ``stride`` apart."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(number: int, index: Any) -> Any:
            data = cgutils.create_struct_proxy(signature.args[number])(context, builder, arguments[number]).data
            return builder.bitcast(builder.gep(data, [index]), F32X16.as_pointer())

        def constant(number: int) -> Any:
            return ir.Constant(arguments[2].type, number)

        for side in range(2):
            column = builder.add(builder.mul(arguments[6], constant(OUTPUTS)), constant(side * LANES))
            scale, shift = (builder.load(place(number, column), align=4) for number in (4, 5))
            for row in range(sums.count // 2):
                value = builder.fadd(builder.fmul(builder.extract_value(arguments[0], 2 * row + side), scale), shift)
                index = builder.add(builder.add(arguments[2], column), builder.mul(arguments[3], constant(row)))
                builder.store(value, place(1, index), align=4)
        return context.get_dummy_value()

    return types.void(sums, out, at, stride, scales, bias, pair), generate


def _dot(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """In each lane, the total plus the four products of unsigned and signed bytes (vpdpbusd)."""
    kind = ir.VectorType(I8, 4 * LANES)
    operands = [builder.bitcast(each, kind) for each in (unsigned, signed)]
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", I32X16, total, *operands)


def _fetch(builder: Any, base: Any) -> None:
    """Ask for lines from here on, for reading, up to the second level of the cache."""
    how = [ir.Constant(I32, number) for number in (0, 2, 1)]
    for line in range(FETCHED):
        place = builder.gep(base, [ir.Constant(ir.IntType(64), line * LINE)])
        call(builder, "llvm.prefetch.p0", ir.VoidType(), place, *how)
