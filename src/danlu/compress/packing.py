"""Integers of 4 or 8 bits side by side in words of 32, as the `pack-quantized` format of compressed-tensors has them.

A value lies with 2^(bits - 1) added, the first of a word in its lowest bits; the last word of a row is filled up with zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from danlu.compress.rounding import Numbers

Words = NDArray[np.int32]


def pack(numbers: Numbers, bits: int) -> Words:
    """Integers (o, i) to words (o, i * bits / 32, rounded up)."""
    outputs, inputs = numbers.shape
    full: NDArray[np.uint8] = np.zeros((outputs, words(inputs, bits) * 32 // bits), np.uint8)
    full[:, :inputs] = (numbers.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    if bits == 4:
        full = full[:, ::2] | full[:, 1::2] * np.uint8(16)
    return np.ascontiguousarray(full).view("<i4").astype(np.int32)


def unpack(packed: Words, bits: int, inputs: int) -> Numbers:
    """Words back to integers (o, i)."""
    octets = np.ascontiguousarray(packed).astype("<i4").view(np.uint8)
    if bits == 4:
        octets = np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(octets), -1)
    numbers: Numbers = (octets[:, :inputs].astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)
    return numbers


def words(inputs: int, bits: int) -> int:
    """How many hold a row."""
    return -(-inputs * bits // 32)
