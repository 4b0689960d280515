"""Which documents are copies of each other: candidates band by band, checked, joined into groups, the best of each chosen.

Everything is sorted by document, so the result depends neither on processes nor on the order in which shards came to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.plan import Plan
from danlu.data.dedup.sketch import DIGESTS, ShardSketch, columns

LEAST_MEMORY = 16 << 20
"""Bytes below which cutting a sort into parts saves nothing worth having."""
MOST_LEADERS = 1 << 14
"""Kept documents of one component that another of it is compared with; it bounds the work on endless chains."""
AT_ONCE = 1 << 17
"""Pairs that are checked at a time."""
_MEMBER = 60
"""Bytes that a document with copies takes while the best of them are chosen."""
Best = Callable[[Array], tuple[Array, Array]]
"""Scores and lengths of sorted documents, by which the best of some copies is chosen: the highest, then the longest."""


class Groups(NamedTuple):
    """The outcome for all documents, numbered shard after shard."""

    copies: Array
    """(copies,) int64, in order: the documents that are left out."""
    leaders: Array
    """(copies,) int64: the better copy of each."""
    groups: int
    """Kept documents that have copies."""
    pairs: int
    """Candidate pairs that were checked."""

    def among(self, first: int, stop: int) -> tuple[Array, Array]:
        """Which documents from `first` up to `stop` are left out, counted from `first` on, and their better copies."""
        span = slice(*np.searchsorted(self.copies, [first, stop]))
        return self.copies[span] - first, self.leaders[span]


class Sketches:
    """The sketches of all shards under one numbering of documents."""

    def __init__(self, shards: Sequence[ShardSketch], plan: Plan) -> None:
        self.shards, self.plan = shards, plan
        self.firsts = list(accumulate((shard.documents for shard in shards), initial=0))
        self.documents = self.firsts[-1]

    def low(self, documents: Array) -> Array:
        """Low bytes of the minima of sorted documents, (documents, permutations) uint8."""
        return np.concatenate([shard.low(rows) for shard, rows in self._by_shard(documents)])

    def same(self, left: Array, right: Array, column: int = 0) -> Array:
        """Whether pairs are the same to the byte, or in what else has its 128 bits in two columns from `column` on."""
        needed, places = np.unique(np.stack([left, right]), return_inverse=True)
        places = places.reshape(2, len(left))
        digests = np.concatenate([shard.digests(rows, column) for shard, rows in self._by_shard(needed)])
        same: Array = (digests[places[0]] == digests[places[1]]).all(1)
        return same

    def _by_shard(self, documents: Array) -> Iterator[tuple[ShardSketch, Array]]:
        cuts = np.searchsorted(documents, self.firsts)
        for number, shard in enumerate(self.shards):
            if number == 0 or cuts[number] < cuts[number + 1]:  # never nothing at all, for concatenate
                yield shard, documents[cuts[number] : cuts[number + 1]] - self.firsts[number]

    def estimates(self, left: Array, right: Array) -> Array:
        """Jaccard of pairs as estimated from the low bytes of their minima, of which one in 256 agrees by chance."""
        from danlu.data.dedup import kernels

        found = np.ones(len(left))
        if self.plan.equal:
            return found
        for start in range(0, len(left), AT_ONCE):
            pair = np.stack([left[start : start + AT_ONCE], right[start : start + AT_ONCE]])
            needed, places = np.unique(pair, return_inverse=True)
            low = self.low(needed)
            places = places.reshape(pair.shape)
            agreeing = np.empty(pair.shape[1], np.int64)
            kernels.agreeing(low, places[0], places[1], agreeing)
            found[start : start + AT_ONCE] = (agreeing / self.plan.permutations - 1 / 256) / (1 - 1 / 256)
        return found

    def buckets(self, column: int, memory: int) -> Iterator[tuple[Array, Array]]:
        """Neighbours and (first, other) pairs of the documents that share a key, some at a time, by parts of the range of keys.

        A key's low bits give way to the document's number, so that one sort of 8 bytes a document does it; documents whose
        keys differ only there meet as well, and are parted by the check that follows.
        """
        bits = max(1, (self.documents - 1).bit_length())
        mask = np.uint64((1 << bits) - 1)
        parts = 1
        while 24 * self.documents // parts > max(memory, LEAST_MEMORY):
            parts *= 2
        shift = np.uint64(64 - (parts.bit_length() - 1))
        for part in range(parts):
            packed = []
            for first, shard in zip(self.firsts, self.shards, strict=False):
                keys = shard.column(column)
                numbers = np.arange(first, first + shard.documents, dtype=np.uint64)
                joined = (keys & ~mask) | numbers
                packed.append(joined if parts == 1 else joined[keys >> shift == part])
            ordered = np.concatenate(packed)
            del packed
            ordered.sort()
            at = np.flatnonzero((ordered[1:] ^ ordered[:-1]) <= mask) + 1
            # Places in a row belong to one key, and the one before the row is where it begins.
            begins = np.concatenate([at[:1], np.where(np.diff(at) > 1, at[1:], 0)])
            row = np.maximum.accumulate(begins) - 1
            del begins
            for start in range(0, len(at), AT_ONCE):
                some, firsts = at[start : start + AT_ONCE], row[start : start + AT_ONCE]
                right = (ordered[some] & mask).astype(np.int64)
                left = (ordered[np.concatenate([some - 1, firsts])] & mask).astype(np.int64)
                yield left, np.concatenate([right, right])


def find(sketches: Sketches, best: Best, memory: int, jaccard: Callable[[int, int], float] | None = None) -> Groups:
    """Group the copies, and choose the best of each group, by `best` and then the first.

    memory: bytes that sorting may take, beside 4 for each document and 16 for each that is left out. jaccard: of two
    documents, exactly; with plan.verify "exact" it decides on pairs that are not the same to the byte.
    """
    from danlu.data.dedup import kernels

    plan = sketches.plan
    parents = np.arange(sketches.documents, dtype=np.int32 if sketches.documents < 1 << 31 else np.int64)
    pairs = 0
    digests = [0, DIGESTS] if plan.equal else [0]
    bands = [] if plan.equal else range(DIGESTS, columns(plan))
    for column in [*digests, *bands]:
        for left, right in sketches.buckets(column, memory):
            new = np.empty(len(left), np.bool_)
            kernels.apart(parents, left, right, new)
            left, right = _distinct(left[new], right[new], sketches.documents)
            pairs += len(left)
            if not len(left):
                continue
            alike = sketches.same(left, right, column) if column in digests else _alike(sketches, left, right, jaccard)
            kernels.unite(parents, left[alike], right[alike])
    kernels.flatten(parents)
    copies, leaders = _leaders(sketches, parents, best, memory, jaccard)
    return Groups(copies, leaders, len(np.unique(leaders)), pairs)


def _distinct(left: Array, right: Array, documents: int) -> tuple[Array, Array]:
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    new = np.ones(len(left), bool)
    new[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    return left[new], right[new]


def _alike(sketches: Sketches, left: Array, right: Array, jaccard: Callable[[int, int], float] | None) -> Array:
    alike: Array = sketches.estimates(left, right) >= sketches.plan.least_estimate
    if jaccard is not None:
        for at in np.flatnonzero(alike):
            alike[at] = jaccard(int(left[at]), int(right[at])) >= sketches.plan.threshold
    return alike


def _leaders(
    sketches: Sketches, parents: Array, best: Best, memory: int, jaccard: Callable[[int, int], float] | None
) -> tuple[Array, Array]:
    """The documents that have a better copy, in order, and that copy of each. parents: flat.

    Copies of copies may be strangers, and pages of one template a long chain of them. So inside what hangs together the best
    is kept, all that are alike to it go, then the best of the rest is kept, until none is left.
    """
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for members in _components(parents, max(memory, LEAST_MEMORY) // _MEMBER):
        found.append(_chosen(sketches, parents, members, best, jaccard))
    copies, leaders = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(copies)
    return copies[order], leaders[order]


def _components(parents: Array, most: int) -> Iterator[Array]:
    """The documents of components of more than one, (members,) int64 in order: about `most` at a time, and components whole."""
    sizes = np.zeros(len(parents), parents.dtype)
    for start in range(0, len(parents), most):
        np.add.at(sizes, parents[start : start + most], 1)
    before = 0
    cuts = [0]
    for start in range(0, len(parents), most):
        some = sizes[start : start + most]
        before += int(some[some > 1].sum())
        if before >= most or start + most >= len(parents):
            cuts.append(min(start + most, len(parents)))
            before = 0
    for first, stop in pairwise(cuts):
        parts = []
        for start in range(first, len(parents), most):  # the representative of a component is the first of it
            some = parents[start : start + most]
            parts.append(start + np.flatnonzero((some >= first) & (some < stop) & (sizes[some] > 1)))
        yield np.concatenate(parts)


def _chosen(
    sketches: Sketches, parents: Array, members: Array, best: Best, jaccard: Callable[[int, int], float] | None
) -> tuple[Array, Array]:
    """Of the members of some components those that have a better copy, and that copy."""
    score, length = best(members)
    order = members[np.lexsort((members, -length, -score, parents[members]))]
    del members, score, length
    group = parents[order]
    cuts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1], [True]])) if len(order) else np.zeros(1, np.int64)
    del group
    sizes = np.diff(cuts)
    leader = np.full(len(order), -1, np.int64)
    pairs = cuts[:-1][sizes == 2]
    leader[pairs + 1] = order[pairs]
    larger = np.flatnonzero(sizes > 2)
    for part in np.split(larger, np.flatnonzero(np.diff(np.cumsum(sizes[larger]) // AT_ONCE)) + 1):
        wanted = np.zeros(len(sizes), bool)
        wanted[part] = True
        places = np.flatnonzero(np.repeat(wanted, sizes))
        rows = order[places]
        led = _led(sketches, rows, np.concatenate([[0], np.cumsum(sizes[part])]), jaccard)
        leader[places] = np.where(led < 0, -1, rows[led])
    return order[leader >= 0], leader[leader >= 0]


def _led(sketches: Sketches, rows: Array, cuts: Array, jaccard: Callable[[int, int], float] | None) -> Array:
    """For each of some documents the place among them of the kept one that it is a copy of, or -1.

    Between cuts stands what hangs together, best first.
    """
    from danlu.data.dedup import kernels

    plan = sketches.plan
    led = np.full(len(rows), -1, np.int64)
    if jaccard is None:
        order = np.argsort(rows)
        low = np.empty((len(rows), plan.permutations), np.uint8)
        low[order] = sketches.low(rows[order])
        needed = math.ceil(plan.permutations * (1 / 256 + plan.least_estimate * (1 - 1 / 256)))
        kernels.gather_round_best(low, cuts, needed, MOST_LEADERS, led)
        return led
    for start, stop in pairwise(cuts.tolist()):
        leaders: list[int] = []
        for place in range(start, stop):
            row = int(rows[place])
            led[place] = next((at for at in leaders if jaccard(int(rows[at]), row) >= plan.threshold), -1)
            if led[place] < 0 and len(leaders) < MOST_LEADERS:
                leaders.append(place)
    return led
