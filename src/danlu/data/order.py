"""The order of the samples: a permutation for each epoch that is computed, not stored."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np

from danlu.data.arrays import Array

ROUNDS = 8


@lru_cache(maxsize=16)
def _keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    """A 64-bit key for every round."""
    digest = hashlib.blake2b(f"danlu order {seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return tuple(np.frombuffer(digest, "<u8"))


def _scramble(x: Array) -> Array:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def permute(indices: Array, samples: int, seed: int, epoch: int) -> Array:
    """Where the order of an epoch puts `indices`: a bijection of range(samples), int64 of the same shape.

    A Feistel network over pairs (left, right) of numbers below a and b, a * b >= samples, whose results beyond
    `samples` are put in again until they fall inside (Black and Rogaway 2002, generalised Feistel and cycle walking).
    Memory and time do not depend on `samples`; at most about sqrt(samples) of the a * b pairs lie outside.
    """
    a = math.isqrt(samples - 1) + 1
    b = -(-samples // a)
    keys = _keys(seed, epoch)
    result = _network(indices.astype(np.uint64), np.uint64(a), np.uint64(b), keys)
    while (outside := result >= samples).any():
        result[outside] = _network(result[outside], np.uint64(a), np.uint64(b), keys)
    return result.astype(np.int64)


def _network(x: Array, a: np.uint64, b: np.uint64, keys: tuple[np.uint64, ...]) -> Array:
    right, left = np.divmod(x, a)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + _scramble(right ^ key) % a) % a
        else:
            right = (right + _scramble(left ^ key) % b) % b
    return right * a + left


def sample_indices(positions: Array, samples: int, seed: int) -> Array:
    """The samples at `positions` of the endless order: epoch after epoch, each with every sample once."""
    epochs, within = np.divmod(positions, samples)
    result = np.empty_like(within)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        result[chosen] = permute(within[chosen], samples, seed, int(epoch))
    return result
