"""From UTF-8 bytes to MinHash values, compiled: the inner loops of near-duplicate removal.

Nothing here knows of files or settings. All arithmetic on hashes is modulo 2^64 or 2^32. The compiled code is cached beside
this file, or in the user's cache folder; the first call on a machine compiles for some seconds.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.fold import ALONE, IGNORED, SEPARATOR

_U64 = np.uint64
_WORD = _U64(0x9E3779B97F4A7C15)
_ROLL = _U64(0xD1342543DE82EF95)
_MIX = _U64(0xFF51AFD7ED558CCD)
_NOTHING = np.uint32(SEPARATOR)
_SKIP = np.uint32(IGNORED)
_ALONE = np.uint32(ALONE)


def _compiled(function: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        return nb.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written: compile in every process
        return nb.njit(**options)(function)


@_compiled
def _mixed(value: np.uint64) -> np.uint64:
    """Spread every bit over the word (finalizer of MurmurHash3, one round and a half)."""
    value ^= value >> _U64(32)
    value *= _MIX
    return value ^ (value >> _U64(29))


@_compiled
def _character(data: Array, at: int, fold: Array) -> tuple[int, np.uint32]:
    """(bytes, entry of the folding table) of the character at a byte of 0x80 or more."""
    lead = data[at]
    if lead < 0xE0:
        return 2, fold[(np.int64(lead & 0x1F) << 6) | (data[at + 1] & 0x3F)]
    if lead < 0xF0:
        return 3, fold[(np.int64(lead & 0x0F) << 12) | (np.int64(data[at + 1] & 0x3F) << 6) | (data[at + 2] & 0x3F)]
    code = (np.int64(lead & 7) << 18) | (np.int64(data[at + 1] & 0x3F) << 12) | (np.int64(data[at + 2] & 0x3F) << 6)
    code |= np.int64(data[at + 3] & 0x3F)
    # Of the other planes the second and third are Han, and the first has rare letters beside emoji and signs.
    return 4, np.uint32(code) | _ALONE


@_compiled
def shingles(data: Array, start: int, stop: int, size: int, fold: Array, ring: Array, out: Array) -> int:
    """Hash every `size` words in a row of data[start:stop] (valid UTF-8) into `out`; return how many there are, at least 1.

    A text of fewer words is one shingle of all of them, one without any word is a shingle of its bytes: short texts are
    alike only when they are the same. The hash rolls: s = s * ROLL + new - old * ROLL ** size.
    """
    drop = _U64(1)
    for _ in range(size):
        drop *= _ROLL
    ring[:size] = 0
    word, rolling = _U64(0), _U64(0)
    words = found = slot = 0
    at = start
    while at <= stop:
        if at == stop:
            length, entry = 1, _NOTHING
        elif data[at] < 0x80:
            length, entry = 1, fold[data[at]]
        else:
            length, entry = _character(data, at, fold)
        at += length
        if entry > _SKIP and entry < _ALONE:
            word = (word ^ _U64(entry)) * _WORD
            continue
        if entry == _SKIP:
            continue
        for part in range(2):
            # A character that is a word by itself ends the word before it.
            if part == 1:
                if entry < _ALONE:
                    break
                word = _U64(entry) * _WORD
            if word == 0:
                continue
            hashed = _mixed(word)
            word = _U64(0)
            rolling = rolling * _ROLL + hashed - ring[slot] * drop
            ring[slot] = hashed
            slot = slot + 1 if slot + 1 < size else 0
            words += 1
            if words >= size:
                out[found] = np.uint32(_mixed(rolling) >> _U64(32))
                found += 1
    if found == 0:
        if words == 0:
            for at in range(start, stop):
                rolling = (rolling ^ _U64(data[at])) * _WORD
        out[0] = np.uint32(_mixed(rolling + _U64(words + 1) * _WORD) >> _U64(32))
        found = 1
    return found


@_compiled
def _minima(values: Array, count: int, multiply: Array, add: Array, out: Array) -> None:
    """out[p] = min over values of multiply[p] * value + add[p] (mod 2^32). Four p at a time keep the vector units busy."""
    whole = len(multiply) // 4 * 4
    for p in range(whole, len(multiply)):
        m0, a0 = multiply[p], add[p]
        least0 = np.uint32(0xFFFFFFFF)
        for i in range(count):
            least0 = min(least0, np.uint32(m0 * values[i] + a0))
        out[p] = least0
    for p in range(0, whole, 4):
        m0, m1, m2, m3 = multiply[p], multiply[p + 1], multiply[p + 2], multiply[p + 3]
        a0, a1, a2, a3 = add[p], add[p + 1], add[p + 2], add[p + 3]
        least0 = least1 = least2 = least3 = np.uint32(0xFFFFFFFF)
        for i in range(count):
            value = values[i]
            least0 = min(least0, np.uint32(m0 * value + a0))
            least1 = min(least1, np.uint32(m1 * value + a1))
            least2 = min(least2, np.uint32(m2 * value + a2))
            least3 = min(least3, np.uint32(m3 * value + a3))
        out[p], out[p + 1], out[p + 2], out[p + 3] = least0, least1, least2, least3


@_compiled
def _digest(data: Array, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """128 bits of hash of bytes, taken eight at a time in four lanes."""
    lane0, lane1, lane2, lane3 = _WORD, _ROLL, _MIX, ~_WORD
    at = start
    while at + 8 <= stop:
        low = _U64(data[at]) | _U64(data[at + 1]) << _U64(8) | _U64(data[at + 2]) << _U64(16) | _U64(data[at + 3]) << _U64(24)
        high = (
            _U64(data[at + 4]) | _U64(data[at + 5]) << _U64(8) | _U64(data[at + 6]) << _U64(16) | _U64(data[at + 7]) << _U64(24)
        )
        lane0, lane1 = (lane1 ^ low) * _WORD, (lane0 ^ high) * _MIX
        lane2, lane3 = (lane3 + (low ^ high << _U64(32))) * _ROLL, lane2 ^ _mixed(lane3)
        at += 8
    while at < stop:
        lane0 = (lane0 ^ _U64(data[at])) * _WORD
        lane2 = (lane2 + _U64(data[at])) * _ROLL
        at += 1
    first = _mixed(_mixed(lane0) * _ROLL + _mixed(lane1) + _U64(stop - start))
    second = _mixed(_mixed(lane2) * _MIX + _mixed(lane3) + first)
    return first, second


@_compiled
def sketch(
    data: Array,
    ends: Array,
    size: int,
    fold: Array,
    multiply: Array,
    add: Array,
    rows: int,
    keys: Array,
    first: int,
    low: Array,
) -> None:
    """MinHash the documents that lie back to back in `data`, document d up to ends[d].

    keys (documents, first + 2 * P / rows) uint64: two digests of the bytes, then hashes of `rows` minima each, first of
    neighbours, then of every (P / rows)-th. low (documents, P) uint8: the low byte of every minimum.
    """
    permutations = len(multiply)
    count = permutations // rows
    longest = start = 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    values = np.empty(longest + 1, np.uint32)
    least = np.empty(permutations, np.uint32)
    ring = np.empty(size, np.uint64)
    start = 0
    for d in range(len(ends)):
        keys[d, 0], keys[d, 1] = _digest(data, start, ends[d])
        found = shingles(data, start, ends[d], size, fold, ring, values)
        _minima(values, found, multiply, add, least)
        for band in range(count):
            near = far = _U64(band + 1)
            for row in range(rows):
                near = _mixed((near ^ _U64(least[band * rows + row])) * _ROLL)
                far = _mixed((far ^ _U64(least[band + row * count])) * _ROLL)
            keys[d, first + band] = near
            keys[d, first + count + band] = far
        for p in range(permutations):
            low[d, p] = np.uint8(least[p] & np.uint32(0xFF))
        start = ends[d]


@_compiled
def root(parents: Array, node: int) -> int:
    """The representative of a node; paths are halved on the way."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@_compiled
def unite(parents: Array, left: Array, right: Array) -> None:
    """Join the groups of left[i] and right[i]; the lower number represents both."""
    for i in range(len(left)):
        a, b = root(parents, left[i]), root(parents, right[i])
        if a < b:
            parents[b] = a
        elif b < a:
            parents[a] = b


@_compiled
def flatten(parents: Array) -> None:
    """Make every entry the representative of its group."""
    for node in range(len(parents)):
        parents[node] = root(parents, node)


@_compiled
def gather_round_best(low: Array, cuts: Array, needed: int, most: int, led: Array) -> None:
    """Give every row, best first, the first row before it that leads and agrees with it in `needed` bytes; -1: it leads itself.

    low: (rows, P) uint8. Rows cuts[i] to cuts[i + 1] are among themselves. At most `most` leaders are tried for a row.
    """
    leaders = np.empty(most, np.int64)
    for part in range(len(cuts) - 1):
        count = 0
        for row in range(cuts[part], cuts[part + 1]):
            led[row] = -1
            for at in range(count):
                agreeing = 0
                for p in range(low.shape[1]):
                    agreeing += low[row, p] == low[leaders[at], p]
                if agreeing >= needed:
                    led[row] = leaders[at]
                    break
            if led[row] < 0 and count < most:
                leaders[count] = row
                count += 1
