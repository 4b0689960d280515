"""Compiled loops: characters to hashed features, features to a logit, and one pass of training.

A feature is an n-gram of 1 to 4 characters, a word, or a pair of words; its value is the square root of how often it occurs, and
a document's vector has length 1. Characters count in their folded form (case, accents and width aside), digits as one, blanks as
one; a character of a script without blanks is a word by itself.
"""

from __future__ import annotations

import math

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled

_U64 = np.uint64
_STEP, _MIX = _U64(0x9E3779B97F4A7C15), _U64(0xBF58476D1CE4E5B9)
_WORDS, _PAIRS = _U64(0xD6E8FEB86659FD93), _U64(0xA0761D6478BD642F)
_ALONE = np.uint32(1 << 31)
_IGNORED = np.uint32(1)
GRAMS = 4


@compiled
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ value >> _U64(31)) * _MIX
    return (value ^ value >> _U64(29)) * _STEP


@compiled
def plain(code: np.uint32, fold: Array) -> np.uint32:
    """A character as it counts; the highest bit marks one that is a word by itself, 0 is to be passed over."""
    entry = fold[code] if code < len(fold) else np.uint32(0)
    if entry == _IGNORED:
        return np.uint32(0)
    if entry == 0:
        return np.uint32(32) if code <= 32 or code == 0x3000 or code == 0xA0 else code
    return np.uint32(48) if 48 <= entry <= 57 else entry


@compiled
def features(codes: Array, fold: Array, shift: int, counts: Array, seen: Array) -> int:
    """Count the features of one document; return how many differ, with their numbers in `seen`.

    counts (2^(64 - shift)) float32 is 0 on entry; seen is long enough for 6 a character.
    """
    found = 0
    ring = np.zeros(GRAMS, np.uint32)
    length = 0
    word, before = _U64(0), _U64(0)
    blank = True
    for at in range(len(codes) + 1):
        entry = plain(codes[at], fold) if at < len(codes) else np.uint32(32)
        if entry == 0 or (entry == 32 and blank):
            continue
        blank = entry == 32
        character = entry & ~_ALONE
        for i in range(GRAMS - 1):
            ring[i] = ring[i + 1]
        ring[GRAMS - 1] = character
        length += 1
        hashed = _U64(0)
        for n in range(1, min(GRAMS, length) + 1):
            hashed = (hashed ^ _U64(ring[GRAMS - n])) * _STEP + _U64(n)
            slot = np.int64(_mixed(hashed) >> _U64(shift))
            if counts[slot] == 0:
                seen[found] = slot
                found += 1
            counts[slot] += 1
        letter = entry >= _ALONE or (character < len(fold) and fold[character] > _IGNORED)
        if letter and entry < _ALONE:
            word = (word ^ _U64(character)) * _WORDS + _U64(1)
            continue
        for part in range(2):
            # A character that is a word by itself ends the word before it.
            if part == 1:
                word = (_U64(character)) * _WORDS + _U64(1) if entry >= _ALONE else _U64(0)
            if word == 0:
                continue
            for pair in range(2):
                if pair == 1 and before == 0:
                    continue
                key = word ^ _WORDS if pair == 0 else (before * _PAIRS) ^ word
                slot = np.int64(_mixed(key) >> _U64(shift))
                if counts[slot] == 0:
                    seen[found] = slot
                    found += 1
                counts[slot] += 1
            before, word = word, _U64(0)
    return found


@compiled
def _normalise(counts: Array, seen: Array, found: int) -> None:
    """Counts to their square roots, over the length of that vector."""
    total = 0.0
    for i in range(found):
        total += counts[seen[i]]
    scale = 1 / math.sqrt(total) if total > 0 else 0.0
    for i in range(found):
        counts[seen[i]] = math.sqrt(counts[seen[i]]) * scale


@compiled
def logits(codes: Array, ends: Array, fold: Array, weights: Array, bias: float, out: Array) -> None:
    """out[d] = bias + weights . features of document d, whose characters end at ends[d]."""
    shift = 64 - int(math.log2(len(weights)) + 0.5)
    longest = start = 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    counts, seen = np.zeros(len(weights), np.float32), np.empty(6 * longest + 16, np.int64)
    start = 0
    for d in range(len(ends)):
        found = features(codes[start : ends[d]], fold, shift, counts, seen)
        _normalise(counts, seen, found)
        logit = bias
        for i in range(found):
            logit += weights[seen[i]] * counts[seen[i]]
            counts[seen[i]] = 0
        out[d] = logit
        start = ends[d]


@compiled
def train(
    codes: Array,
    ends: Array,
    fold: Array,
    order: Array,
    targets: Array,
    importance: Array,
    weights: Array,
    squares: Array,
    bias: Array,
    rate: float,
    decay: float,
) -> float:
    """One pass over documents in `order`: logistic loss, AdaGrad (Duchi et al. 2011), L2 decay; return the mean loss.

    targets (documents,) in [0, 1], importance (documents,); weights and squares (features,), bias (2,) with its sum of squares.
    """
    shift = 64 - int(math.log2(len(weights)) + 0.5)
    longest = start = 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    counts, seen = np.zeros(len(weights), np.float32), np.empty(6 * longest + 16, np.int64)
    loss = 0.0
    for d in order:
        start = ends[d - 1] if d else 0
        found = features(codes[start : ends[d]], fold, shift, counts, seen)
        _normalise(counts, seen, found)
        logit = bias[0]
        for i in range(found):
            logit += weights[seen[i]] * counts[seen[i]]
        chance = 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
        loss += max(logit, 0.0) - logit * targets[d] + math.log1p(math.exp(-abs(logit)))
        error = (chance - targets[d]) * importance[d]
        bias[1] += error * error
        bias[0] -= rate * error / math.sqrt(bias[1] + 1e-8)
        for i in range(found):
            slot = seen[i]
            gradient = error * counts[slot] + decay * weights[slot]
            squares[slot] += gradient * gradient
            weights[slot] -= rate * gradient / math.sqrt(squares[slot] + 1e-8)
            counts[slot] = 0
    return loss / max(1, len(order))
