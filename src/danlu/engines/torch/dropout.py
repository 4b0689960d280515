"""Dropout (Srivastava et al. 2014) whose masks are a function of what they fall on, so that every layout draws the same ones.

Whether an entry is dropped is a hash of (seed, number of the sample in the run, column in the sample, layer and half of it,
channel). There is no random state: shards differ, replicas agree, recomputation redraws and a resumed run goes on by themselves.
The hash is SplitMix64's (Steele, Lea & Flood 2014), and 16 bits of it decide about one entry.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 1 << 16
"""The rate is rounded to a multiple of 1 / LEVELS."""
_WORD_ENTRIES = 4


def _signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_SEED, _LAYER, _PLACE = 0xD1342543DE82EF95, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's output function; products wrap around, and shifts fill with zeros."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _FIRST
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _SECOND
    return z ^ ((z >> 31) & ((1 << 33) - 1))


# Operators of their own, since torch's compiler, which would otherwise look into them, gets such integer arithmetic wrong.
@torch.library.custom_op("danlu::dropout_keys", mutates_args=())
def _keys(samples_b: Tensor, seed: int, t: int) -> Tensor:
    columns_t = torch.arange(t, device=samples_b.device)
    return _mixed(_mixed(samples_b + seed)[:, None] + _mixed(columns_t))


@_keys.register_fake
def _(samples_b: Tensor, seed: int, t: int) -> Tensor:
    return samples_b.new_empty((samples_b.shape[0], t))


@torch.library.custom_op("danlu::dropout_keep", mutates_args=())
def _keep(keys_bt: Tensor, first: int, d: int, dropped: int) -> Tensor:
    words = range(first // _WORD_ENTRIES, -(-(first + d) // _WORD_ENTRIES))
    counters = _mixed(torch.arange(words.start + 1, words.stop + 1, device=keys_bt.device))
    entries_btd = _mixed(keys_bt[..., None] + counters).view(torch.int16)
    return entries_btd[..., first % _WORD_ENTRIES :][..., :d] >= dropped - LEVELS // 2


@_keep.register_fake
def _(keys_bt: Tensor, first: int, d: int, dropped: int) -> Tensor:
    return keys_bt.new_empty((*keys_bt.shape, d), dtype=torch.bool)


class Keys:
    """What masks are drawn from."""

    def __init__(self, seed: int) -> None:
        self.seed = seed * _SEED + 1

    def __call__(self, samples_b: Tensor, t: int, layer: int) -> Tensor:
        """(b, t) int64: a hash of each token's sample number (over the whole run), its column and the layer."""
        made: Tensor = _keys(samples_b, _signed(self.seed + layer * _LAYER), t)
        return made


def elsewhere(keys_bt: Tensor, place: int) -> Tensor:
    """Keys for another place of the same layer."""
    return keys_bt + _signed(place * _PLACE)


class Dropout:
    """Zeroes entries at a rate and scales the others up; the mask is a byte an entry, kept for backward."""

    def __init__(self, rate: float, part: int = 0) -> None:
        """``part``: which part of the sequence this process holds, where tensor ranks split it."""
        self.dropped = round(rate * LEVELS)
        self.scale = LEVELS / (LEVELS - self.dropped)
        self.part = part

    def keep(self, keys_bt: Tensor, first: int, d: int) -> Tensor:
        """(b, t, d) bool: what stays of d channels from the ``first`` on."""
        made: Tensor = _keep(keys_bt, first, d, self.dropped)
        return made

    def __call__(self, x_btd: Tensor, keys_bt: Tensor, half: int) -> Tensor:
        """Of a residual branch, given the keys of the whole sequence; ``half`` tells apart the two places of a layer."""
        _, t, d = x_btd.shape
        keys_bt = keys_bt[:, self.part * t : (self.part + 1) * t]
        return x_btd * self.keep(keys_bt, half * -(-d // _WORD_ENTRIES) * _WORD_ENTRIES, d) * self.scale
