"""Dropout (Srivastava et al. 2014) whose masks are a function of what they fall on, so that every layout draws the same ones.

Whether an entry is dropped is a hash of (seed, number of the sample in the run, column in the sample, layer and half of it,
channel), the very one of the torch engine. There is no random state: recomputation redraws, and a resumed run goes on by itself.
The hash is SplitMix64's (Steele, Lea & Flood 2014), and 16 bits of it decide about one entry.
"""

from __future__ import annotations

import paddle
from paddle import Tensor

LEVELS = 1 << 16
"""The rate is rounded to a multiple of 1 / LEVELS."""
_WORD_ENTRIES = 4


def _signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_SEED, _LAYER = 0xD1342543DE82EF95, 0xA0761D6478BD642F


def _number(value: int) -> Tensor:
    """A tensor of its own, from two halves: a compiled graph takes a number through a float64, which holds 53 bits of it."""
    if not abs(value) >> 32:
        return paddle.to_tensor(value, dtype="int64")
    high, low, half = (paddle.to_tensor(part, dtype="int64") for part in (value >> 32, value & 0xFFFFFFFF, 1 << 32))
    return high * half + low


def _shifted(z: Tensor, bits: int) -> Tensor:
    return paddle.bitwise_right_shift(z, _number(bits), is_arithmetic=False)


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's output function; products wrap around, and shifts fill with zeros."""
    z = paddle.bitwise_xor(z, _shifted(z, 30)) * _number(_FIRST)
    z = paddle.bitwise_xor(z, _shifted(z, 27)) * _number(_SECOND)
    return paddle.bitwise_xor(z, _shifted(z, 31))


class Dropout:
    """Zeroes entries of a residual branch at a rate and scales the others up."""

    def __init__(self, rate: float, seed: int, part: int = 0) -> None:
        """``part``: which part of the sequence this process holds, where tensor ranks split it."""
        self.dropped = round(rate * LEVELS)
        self.scale = LEVELS / (LEVELS - self.dropped)
        self.seed, self.part = seed * _SEED + 1, part

    def keys(self, samples_b: Tensor, t: int, layer: int) -> Tensor:
        """(b, t) int64: a hash of each token's sample number (over the whole run), its column and the layer."""
        columns_t = paddle.arange(self.part * t, (self.part + 1) * t, dtype="int64")
        seeded_b = samples_b + _number(_signed(self.seed + layer * _LAYER))
        return _mixed(_mixed(seeded_b)[:, None] + _mixed(columns_t))

    def keep(self, keys_bt: Tensor, half: int, d: int) -> Tensor:
        """(b, t, d) bool: what stays; ``half`` tells apart the two places of a layer."""
        words = -(-d // _WORD_ENTRIES)
        counters = _mixed(paddle.arange(half * words + 1, (half + 1) * words + 1, dtype="int64"))
        words_btw = _mixed(keys_bt[:, :, None] + counters)
        if paddle.in_dynamic_mode():
            entries_btd = words_btw.view("int16").astype("int32")
        else:  # a compiled graph has no views; the same four numbers of 16 bits with their signs, the lowest first
            signed = [_shifted(words_btw, 16 * place).astype("int16") for place in range(_WORD_ENTRIES)]
            entries_btd = paddle.stack(signed, -1).flatten(-2).astype("int32")
        return entries_btd[:, :, :d] >= self.dropped - LEVELS // 2

    def __call__(self, x_btd: Tensor, keys_bt: Tensor, half: int) -> Tensor:
        return x_btd * self.keep(keys_bt, half, x_btd.shape[-1]).astype(x_btd.dtype) * self.scale
