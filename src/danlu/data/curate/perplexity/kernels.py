"""Compiled loops: counting n-grams of characters, and the surprise of a text by interpolation after Witten and Bell (1991).

P_n(c | context) = (count(context c) + kinds(context) P_{n-1}(c)) / (count(context) + kinds(context)), where kinds are the
characters seen behind the context, and P_0 is even over all characters; a context with nothing behind it leaves what the one
shorter says. A row of the table has the count of an n-gram and the kinds behind it, by its hash; n-grams that meet in a row are
taken for one. Characters count in their folded form.
"""

from __future__ import annotations

import math

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled
from danlu.data.curate.linear.kernels import plain

ORDER = 5
"""Characters of the longest n-gram; contexts have one less."""
CHARACTERS = 1 << 16
"""Over which the shortest model is even."""
_SEED, _STEP, _MIX = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_BLANK = np.uint32(32)


@compiled
def _slot(key: np.uint64, bits: int) -> np.int64:
    key = (key ^ key >> np.uint64(31)) * _MIX
    return np.int64((key ^ key >> np.uint64(29)) * _STEP >> np.uint64(np.uint64(64) - np.uint64(bits)))


@compiled
def _begin(keys: Array) -> None:
    """A text begins as after a character that no text has inside."""
    keys[:] = _SEED
    for _ in range(ORDER):
        _next(np.uint32(0), keys)


@compiled
def _next(character: np.uint32, keys: Array) -> None:
    """keys[n] of the last n characters become those with one more; keys[0] never changes."""
    for n in range(ORDER, 0, -1):
        keys[n] = (keys[n - 1] ^ np.uint64(character)) * _STEP + np.uint64(n)


@compiled
def count(codes: Array, ends: Array, fold: Array, bits: int, table: Array) -> None:
    """Add the n-grams of some documents to table (2^bits, 2) uint32: how often each occurs, and kinds that follow it."""
    keys = np.empty(ORDER + 1, np.uint64)
    start = 0
    for stop in ends:
        _begin(keys)
        for n in range(1, ORDER):
            table[_slot(keys[n], bits)][0] += 1
        before = _BLANK
        for at in range(start, stop):
            entry = plain(codes[at], fold)
            if entry == 0 or (entry == _BLANK and before == _BLANK):
                continue
            before = entry
            for n in range(ORDER):  # what stands before is still that of the last character
                context = table[_slot(keys[n], bits)]
                gram = table[_slot((keys[n] ^ np.uint64(entry)) * _STEP + np.uint64(n + 1), bits)]
                context[1] += gram[0] == 0
                gram[0] += 1
            table[_slot(keys[0], bits)][0] += 1
            _next(entry, keys)
        start = stop


@compiled
def surprise(codes: Array, ends: Array, fold: Array, bits: int, table: Array, out: Array) -> None:
    """out[d] = -log P, in nats, of document d over the bytes that its characters have in UTF-8; 0 for one without any."""
    keys = np.empty(ORDER + 1, np.uint64)
    counts, kinds = np.empty(ORDER + 1), np.empty(ORDER + 1)
    start = 0
    for d in range(len(ends)):
        _begin(keys)
        for n in range(ORDER + 1):
            gram = table[_slot(keys[n], bits)]
            counts[n], kinds[n] = gram[0], gram[1]
        before, nats, size = _BLANK, 0.0, 0
        for at in range(start, ends[d]):
            entry = plain(codes[at], fold)
            if entry == 0 or (entry == _BLANK and before == _BLANK):
                continue
            before = entry
            _next(entry, keys)
            chance = 1 / CHARACTERS
            above_count, above_kinds = counts[0], kinds[0]
            for n in range(1, ORDER + 1):
                gram = table[_slot(keys[n], bits)]
                if above_kinds > 0:
                    chance = (gram[0] + above_kinds * chance) / (above_count + above_kinds)
                above_count, above_kinds = counts[n], kinds[n]
                counts[n], kinds[n] = gram[0], gram[1]
            nats -= math.log(chance)
            code = codes[at]
            size += 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
        out[d] = nats / max(1, size)
        start = ends[d]
