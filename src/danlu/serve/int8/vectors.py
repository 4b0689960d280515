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
_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_INTS, _FLOATS, _BYTES = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES), ir.VectorType(_I8, 4 * LANES)


class _Ints(types.Type):
    def __init__(self) -> None:
        super().__init__("Ints")


class _Floats(types.Type):
    def __init__(self) -> None:
        super().__init__("Floats")


INTS, FLOATS = _Ints(), _Floats()


@register_model(_Ints)
class _IntsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _INTS)


@register_model(_Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def _address(context: Any, builder: Any, kind: Any, target: Any, array: Any, index: Any) -> Any:
    """Of the element of a contiguous array that this index counts to, as a pointer to the target's type."""
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


@intrinsic
def ints(_: Any, value: Any) -> Any:
    """A 32-bit number in all lanes."""
    return INTS(types.int32), lambda context, builder, signature, arguments: _splat(builder, arguments[0], _INTS)


@intrinsic
def floats(_: Any, value: Any) -> Any:
    """A float in all lanes."""
    return FLOATS(types.float32), lambda context, builder, signature, arguments: _splat(builder, arguments[0], _FLOATS)


@intrinsic
def load_bytes(_: Any, array: Any, index: Any) -> Any:
    """64 bytes from an index on, as 16 lanes of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _address(context, builder, signature.args[0], _INTS, *arguments)
        return builder.load(place, align=1)

    return INTS(array, types.intp), generate


@intrinsic
def broadcast_bytes(_: Any, array: Any, index: Any) -> Any:
    """Four bytes from an index on, in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _address(context, builder, signature.args[0], _I32, *arguments)
        return _splat(builder, builder.load(place, align=1), _INTS)

    return INTS(array, types.intp), generate


@intrinsic
def load_floats(_: Any, array: Any, index: Any) -> Any:
    """16 floats from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], _FLOATS, *arguments), align=4)

    return FLOATS(array, types.intp), generate


@intrinsic
def store_floats(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Write 16 floats from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature.args[0], _FLOATS, *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, FLOATS), generate


@intrinsic
def dot_bytes(_: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """In each lane, the total plus the four products of unsigned and signed bytes (vpdpbusd)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INTS, [_INTS, _BYTES, _BYTES])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return builder.call(function, [arguments[0], *(builder.bitcast(each, _BYTES) for each in arguments[1:])])

    return INTS(INTS, INTS, INTS), generate


@intrinsic
def add_scaled(_: Any, total: Any, numbers: Any, scale: Any) -> Any:
    """total + float(numbers) * scale, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fma(builder, builder.sitofp(arguments[1], _FLOATS), arguments[2], arguments[0])

    return FLOATS(FLOATS, INTS, FLOATS), generate


@intrinsic
def times(_: Any, left: Any, right: Any) -> Any:
    """The product, lane by lane."""
    return FLOATS(FLOATS, FLOATS), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@intrinsic
def add_product(_: Any, total: Any, left: Any, right: Any) -> Any:
    """total + left * right, lane by lane, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fma(builder, arguments[1], arguments[2], arguments[0])

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
def exponential(_: Any, value: Any) -> Any:
    """e to the value, lane by lane, for values up to 0: below -87 it is 0. Within 2e-7 of it.

    2^n times a polynomial of the rest, which is within half of log 2 (Cody & Waite 1980, chapter 6).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def all_lanes(number: float, kind: Any = _F32) -> Any:
            return ir.Constant(ir.VectorType(kind, LANES), [number] * LANES)

        least = all_lanes(-87.0)
        tiny = builder.fcmp_ordered("<", arguments[0], least)
        x = builder.select(tiny, least, arguments[0])
        rounding = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), "llvm.rint.v16f32")
        n = builder.call(rounding, [builder.fmul(x, all_lanes(_float(math.log2(math.e))))])
        rest = _fma(builder, n, all_lanes(-_LOG2_HIGH), x)
        rest = _fma(builder, n, all_lanes(_float(_LOG2_HIGH - math.log(2))), rest)
        result = all_lanes(_float(1 / math.factorial(7)))
        for power in range(6, -1, -1):
            result = _fma(builder, result, rest, all_lanes(_float(1 / math.factorial(power))))
        exponent = builder.add(builder.fptosi(n, _INTS), all_lanes(127, _I32))
        scale = builder.bitcast(builder.shl(exponent, all_lanes(23, _I32)), _FLOATS)
        return builder.select(tiny, all_lanes(0.0), builder.fmul(result, scale))

    return FLOATS(FLOATS), generate


_LOG2_HIGH = 0.693359375
"""The first bits of log 2: so few that its product with a whole number is exact."""


def _float(number: float) -> float:
    """The nearest number of 32 bits, as LLVM's constants of that kind must be."""
    return float(np.float32(number))


def _fma(builder: Any, left: Any, right: Any, total: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [left, right, total])
