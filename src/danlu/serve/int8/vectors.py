"""Vectors of 16 numbers for compiled kernels: just what products of 8-bit matrices and attention need (AVX-512 VNNI).

Numba has no vector types; these carry LLVM's own through a kernel's variables, so that they live in registers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
I8, I32, F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
I32X16, F32X16 = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)


class _Floats(types.Type):
    def __init__(self) -> None:
        super().__init__("Floats")


FLOATS = _Floats()


@register_model(_Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, F32X16)


def address(context: Any, builder: Any, kind: Any, target: Any, array: Any, index: Any) -> Any:
    """Of the element of a contiguous array that this index counts to, as a pointer to the target's type."""
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def splat(builder: Any, value: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(I32X16, [0] * LANES))


@intrinsic
def floats(_: Any, value: Any) -> Any:
    """A float in all lanes."""
    return FLOATS(types.float32), lambda context, builder, signature, arguments: splat(builder, arguments[0], F32X16)


@intrinsic
def load_floats(_: Any, array: Any, index: Any) -> Any:
    """16 floats from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(address(context, builder, signature.args[0], F32X16, *arguments), align=4)

    return FLOATS(array, types.intp), generate


@intrinsic
def store_floats(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Write 16 floats from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], address(context, builder, signature.args[0], F32X16, *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, FLOATS), generate


@intrinsic
def times(_: Any, left: Any, right: Any) -> Any:
    """The product, lane by lane."""
    return FLOATS(FLOATS, FLOATS), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@intrinsic
def add_product(_: Any, total: Any, left: Any, right: Any) -> Any:
    """total + left * right, lane by lane, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return fma(builder, arguments[1], arguments[2], arguments[0])

    return FLOATS(FLOATS, FLOATS, FLOATS), generate


@intrinsic
def plus(_: Any, left: Any, right: Any) -> Any:
    """The sum, lane by lane."""
    return FLOATS(FLOATS, FLOATS), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
def larger(_: Any, left: Any, right: Any) -> Any:
    """The larger one, lane by lane; of numbers, not NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return FLOATS(FLOATS, FLOATS), generate


@intrinsic
def minus(_: Any, value: Any) -> Any:
    """The same with the other sign, lane by lane."""
    return FLOATS(FLOATS), lambda context, builder, signature, arguments: builder.fneg(*arguments)


@intrinsic
def magnitude(_: Any, value: Any) -> Any:
    """The absolute value, lane by lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.fabs.v16f32", F32X16, *arguments)

    return FLOATS(FLOATS), generate


@intrinsic
def largest(_: Any, value: Any) -> Any:
    """The largest of the lanes; of numbers, not NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.vector.reduce.fmax.v16f32", F32, *arguments)

    return types.float32(FLOATS), generate


@intrinsic
def total(_: Any, value: Any) -> Any:
    """The sum of the lanes, added up from the first on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.vector.reduce.fadd.v16f32", F32, ir.Constant(F32, 0.0), arguments[0])

    return types.float32(FLOATS), generate


@intrinsic
def over(_: Any, left: Any, right: Any) -> Any:
    """The quotient, lane by lane."""
    return FLOATS(FLOATS, FLOATS), lambda context, builder, signature, arguments: builder.fdiv(*arguments)


@intrinsic
def where_negative(_: Any, value: Any, one: Any, other: Any) -> Any:
    """One where the value is below zero, else the other, lane by lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        below = builder.fcmp_ordered("<", arguments[0], ir.Constant(F32X16, [0.0] * LANES))
        return builder.select(below, *arguments[1:])

    return FLOATS(FLOATS, FLOATS, FLOATS), generate


@intrinsic
def store_rounded(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Write the nearest whole numbers, of -128 to 127, as 16 bytes from an index on; returns their sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(I8, LANES)
        whole = builder.fptosi(call(builder, "llvm.rint.v16f32", F32X16, arguments[2]), I32X16)
        builder.store(builder.trunc(whole, kind), address(context, builder, signature.args[0], kind, *arguments[:2]), align=1)
        return call(builder, "llvm.vector.reduce.add.v16i32", I32, whole)

    return types.int32(array, types.intp, FLOATS), generate


@intrinsic
def exponential(_: Any, value: Any) -> Any:
    """e to the value, lane by lane, for values up to 0: below -87 it is 0. Within 2e-7 of it.

    2^n times a polynomial of the rest, which is within half of log 2 (Cody & Waite 1980, chapter 6).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def all_lanes(number: float, kind: Any = F32) -> Any:
            return ir.Constant(ir.VectorType(kind, LANES), [number] * LANES)

        least = all_lanes(-87.0)
        tiny = builder.fcmp_ordered("<", arguments[0], least)
        x = builder.select(tiny, least, arguments[0])
        n = call(builder, "llvm.rint.v16f32", F32X16, builder.fmul(x, all_lanes(_float(math.log2(math.e)))))
        rest = fma(builder, n, all_lanes(-_LOG2_HIGH), x)
        rest = fma(builder, n, all_lanes(_float(_LOG2_HIGH - math.log(2))), rest)
        result = all_lanes(_float(1 / math.factorial(7)))
        for power in range(6, -1, -1):
            result = fma(builder, result, rest, all_lanes(_float(1 / math.factorial(power))))
        exponent = builder.add(builder.fptosi(n, I32X16), all_lanes(127, I32))
        scale = builder.bitcast(builder.shl(exponent, all_lanes(23, I32)), F32X16)
        return builder.select(tiny, all_lanes(0.0), builder.fmul(result, scale))

    return FLOATS(FLOATS), generate


_LOG2_HIGH = 0.693359375
"""The first bits of log 2: so few that its product with a whole number is exact."""


def _float(number: float) -> float:
    """The nearest number of 32 bits, as LLVM's constants of that kind must be."""
    return float(np.float32(number))


def fma(builder: Any, left: Any, right: Any, total: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", F32X16, left, right, total)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """One of LLVM's own functions."""
    kind = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
