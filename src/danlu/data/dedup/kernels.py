"""From UTF-8 bytes to MinHash values, compiled: the inner loops of near-duplicate removal.

Nothing here knows of files or settings. All arithmetic on hashes is modulo 2^64 or 2^32. The first call on a machine compiles
for some seconds.
"""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import ZERO, compiled
from danlu.data.dedup.fold import ALONE, IGNORED, SEPARATOR

U64 = np.uint64
WORD = U64(0x9E3779B97F4A7C15)
ROLL = U64(0xD1342543DE82EF95)
_MIX = U64(0xFF51AFD7ED558CCD)
_LETTER = U64(257)
"""By which a word's hash grows for a letter of ASCII: a shift and a sum, so that it waits less for the letter before."""
_PLAIN = np.array([ord(chr(code).lower()) if code < 0x80 and chr(code).isalnum() else 0 for code in range(256)], np.uint8)
"""By byte: the folded letter or digit of ASCII, or 0."""
_NOTHING = np.uint32(SEPARATOR)
_SKIP = np.uint32(IGNORED)
_ALONE = np.uint32(ALONE)


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """Spread every bit over the word (finalizer of MurmurHash3, one round and a half)."""
    value ^= value >> U64(32)
    value *= _MIX
    return value ^ (value >> U64(29))


@compiled
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


@compiled
def words(data: Array, start: int, stop: int, fold: Array, out: Array) -> int:
    """Hash every word of data[start:stop] (valid UTF-8) into `out`, which has room for one a two bytes and two more; return
    how many there are.

    ASCII goes without a branch: where words end cannot be foretold, and a wrong guess costs the time of several letters.
    """
    word, count = U64(0), U64(0)  # an index without a sign is not looked at whether it counts from the end
    at = start
    while at < stop:
        byte = data[U64(at)]
        if byte < 0x80:
            letter = U64(_PLAIN[byte])
            out[count] = word
            count += U64((letter == 0) & (word != 0))
            word = word * _LETTER + letter if letter else U64(0)
            at += 1
            continue
        length, entry = _character(data, at, fold)
        at += length
        if entry == _SKIP:
            continue
        if entry > _SKIP and entry < _ALONE:
            word = word * _LETTER + U64(entry) if entry < 0x80 else (word ^ U64(entry)) * WORD
            continue
        out[count] = word
        count += U64(word != 0)
        word = U64(0)
        if entry >= _ALONE:
            out[count] = U64(entry) * WORD
            count += U64(1)
    out[count] = word
    return int(count + U64(word != 0))


@compiled
def shingles(data: Array, start: int, stop: int, size: int, fold: Array, hashes: Array, out: Array) -> int:
    """Hash every `size` words in a row of data[start:stop] (valid UTF-8) into `out`; return how many there are, at least 1.

    A text of fewer words is one shingle of all of them, one without any word is a shingle of its bytes: short texts are
    alike only when they are the same. hashes: (2, n) uint64 to work in, n as `out` has: (stop - start) // 2 + 2 or more.
    """
    each, sums = hashes[0], hashes[1]
    count = words(data, start, stop, fold, each)
    for i in range(count):
        each[i] = mixed(each[i])
    found: int = max(1, count - size + 1)
    sums[:found] = U64(0)
    if count < size:
        for at in range(start, stop if count == 0 else start):
            sums[0] = (sums[0] ^ U64(data[at])) * WORD
        for i in range(count):
            sums[0] = sums[0] * ROLL + each[i]
        sums[0] += U64(count + 1) * WORD
    else:
        for offset in range(size):
            for i in range(found):
                sums[i] = sums[i] * ROLL + each[i + offset]
    for i in range(found):
        out[i] = np.uint32(mixed(sums[i]) >> U64(32))
    return found


@compiled
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


@compiled
def _digest(data: Array, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """128 bits of hash of bytes, taken eight at a time in four lanes."""
    lane0, lane1, lane2, lane3 = WORD, ROLL, _MIX, ~WORD
    at = start
    while at + 8 <= stop:
        low = high = U64(0)
        for byte in range(4):  # an index without a sign, so that the eight bytes become one load
            low |= U64(data[U64(at + byte)]) << U64(8 * byte)
            high |= U64(data[U64(at + 4 + byte)]) << U64(8 * byte)
        lane0, lane1 = (lane1 ^ low) * WORD, (lane0 ^ high) * _MIX
        lane2, lane3 = (lane3 + (low ^ high << U64(32))) * ROLL, lane2 ^ mixed(lane3)
        at += 8
    while at < stop:
        lane0 = (lane0 ^ U64(data[at])) * WORD
        lane2 = (lane2 + U64(data[at])) * ROLL
        at += 1
    first = mixed(mixed(lane0) * ROLL + mixed(lane1) + U64(stop - start))
    second = mixed(mixed(lane2) * _MIX + mixed(lane3) + first)
    return first, second


@compiled
def digests(data: Array, ends: Array, fold: Array, keys: Array) -> None:
    """keys (documents, 4) uint64: two digests of the bytes, and two of the words in their order, or of the bytes again where
    there are none. The documents lie back to back in `data`, document d up to ends[d]."""
    longest = start = 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    found = np.empty(longest // 2 + 2, np.uint64)
    start = ZERO
    for d in range(len(ends)):
        keys[d, 0], keys[d, 1] = _digest(data, start, ends[d])
        count = words(data, start, ends[d], fold, found)
        keys[d, 2], keys[d, 3] = keys[d, 0], keys[d, 1]
        if count:
            first, second = WORD, ROLL
            for i in range(count):
                first = (first ^ mixed(found[i])) * ROLL
                second = second * WORD + mixed(found[i] ^ _MIX)
            keys[d, 2], keys[d, 3] = mixed(first + U64(count)), mixed(second ^ U64(count))
        start = ends[d]


@compiled
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
    values = np.empty(longest // 2 + 2, np.uint32)
    hashes = np.empty((2, longest // 2 + 2), np.uint64)
    least = np.empty(permutations, np.uint32)
    start = ZERO
    for d in range(len(ends)):
        keys[d, 0], keys[d, 1] = _digest(data, start, ends[d])
        found = shingles(data, start, ends[d], size, fold, hashes, values)
        _minima(values, found, multiply, add, least)
        for band in range(count):
            near = far = U64(band + 1)
            for row in range(rows):
                near = mixed((near ^ U64(least[band * rows + row])) * ROLL)
                far = mixed((far ^ U64(least[band + row * count])) * ROLL)
            keys[d, first + band] = near
            keys[d, first + count + band] = far
        for p in range(permutations):
            low[d, p] = np.uint8(least[p] & np.uint32(0xFF))
        start = ends[d]


@compiled
def root(parents: Array, node: int) -> int:
    """The representative of a node; paths are halved on the way."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@compiled
def unite(parents: Array, left: Array, right: Array) -> None:
    """Join the groups of left[i] and right[i]; the lower number represents both."""
    for i in range(len(left)):
        a, b = root(parents, left[i]), root(parents, right[i])
        if a < b:
            parents[b] = a
        elif b < a:
            parents[a] = b


@compiled
def apart(parents: Array, left: Array, right: Array, out: Array) -> None:
    """Whether left[i] and right[i] are of different groups."""
    for i in range(len(left)):
        out[i] = root(parents, left[i]) != root(parents, right[i])


@compiled
def flatten(parents: Array) -> None:
    """Make every entry the representative of its group."""
    for node in range(len(parents)):
        parents[node] = root(parents, node)


@compiled
def agreeing(low: Array, left: Array, right: Array, out: Array) -> None:
    """Count the bytes in which rows left[i] and right[i] of low, (rows, P) uint8, agree."""
    for i in range(len(left)):
        a, b = U64(left[i]), U64(right[i])
        out[i] = 0
        for p in range(low.shape[1]):
            out[i] += low[a, U64(p)] == low[b, U64(p)]


@compiled
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
