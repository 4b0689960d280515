"""From shards that every stage has seen, and the copies among them, to the files of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.account import Fates
from danlu.data.curate.execute import Workers, each, in_order
from danlu.data.curate.final import KEPT, NOISE, Copies, last_pass, noise_pass, texts_of
from danlu.data.curate.noise import Count, Noise, Pool, draw
from danlu.data.curate.places import Places
from danlu.data.curate.shard import Shard
from danlu.data.curate.spool import Spool
from danlu.data.curate.tally import EXCERPT, Tally
from danlu.data.dedup.groups import Groups, Sketches

LARGEST = 10
"""Groups of copies that the report names."""


@dataclass(frozen=True)
class Finish:
    """What is known of all shards before the last pass."""

    cut: Sequence[Shard]
    spools: Sequence[Spool]
    fate: Fates
    found: Groups | None
    """The copies; None when they were not looked for."""
    sketches: Sketches | None
    folder: Path
    workers: Workers

    @classmethod
    def of(
        cls,
        cut: Sequence[Shard],
        spools: Sequence[Spool],
        found: Groups | None,
        sketches: Sketches | None,
        folder: Path,
        workers: Workers,
    ) -> Finish:
        return cls(cut, spools, Fates(spools, found), found, sketches, folder, workers)

    def keep(self, tally: Tally) -> None:
        """Write what is kept for what it is, and what is rejected for good."""
        for told in in_order(each(self._last_passes(), self.workers)):
            tally.add(told.as_dict())

    def _last_passes(self) -> Iterator[tuple[Any, ...]]:
        first = 0
        for shard, spool, one in zip(self.cut, self.spools, self.fate, strict=True):
            copies = Copies(np.empty(0, np.int64), np.empty(0, np.int64), [])
            if self.found is not None:
                rows, leaders = self.found.among(first, first + spool.documents)
                hard = ~one.soft[rows]
                copies = Copies(rows[hard], leaders[hard], self._names(leaders[hard]))
            yield last_pass, spool, shard.field, self.folder, first, copies, self.sketches
            first += spool.documents

    def noise(self, tally: Tally, ratio: float, weights: Sequence[float], count: Count) -> Noise:
        """Draw and write noise, and reject what failed a soft rule and was not drawn."""
        pools = [
            Pool(spool, shard.field, np.flatnonzero(one.clean), np.flatnonzero(one.candidate), weights[shard.source])
            for shard, spool, one in zip(self.cut, self.spools, self.fate, strict=True)
        ]
        noise = draw(pools, ratio, count)
        (self.folder / NOISE).mkdir(exist_ok=True)
        passes = [
            (noise_pass, pool.spool, pool.field, self.folder, drawn, np.flatnonzero(one.copy | one.spent))
            for pool, drawn, one in zip(pools, noise.drawn, self.fate, strict=True)
        ]
        for told in in_order(each(passes, self.workers)):
            tally.add(told.as_dict())
        return noise

    @cached_property
    def _firsts(self) -> Array:
        """Numbers of the first document of each shard, over all shards, and of one more."""
        return np.cumsum([0, *(spool.documents for spool in self.spools)])

    @cached_property
    def _stays(self) -> Places:
        """Those of the documents that are kept for what they are."""
        return Places.of(one.clean for one in self.fate)

    def _names(self, documents: Array) -> list[str | None]:
        """File and line in the result of documents, by number, that are the best of their copies; None: it is not kept."""
        shard = np.searchsorted(self._firsts, documents, side="right") - 1
        line = self._stays.before(documents) - self._stays.before(self._firsts[shard]) + 1
        kept = self._stays.has(documents)
        return [
            f"{KEPT}/{self.cut[s].name}.jsonl:{n}" if stays else None
            for s, n, stays in zip(shard.tolist(), line.tolist(), kept.tolist(), strict=True)
        ]

    def largest(self) -> list[dict[str, Any]]:
        """The kept documents with the most copies."""
        if self.found is None:
            return []
        found = []
        for first, stop, one in zip(self._firsts, self._firsts[1:], self.fate, strict=False):
            rows, leaders = self.found.among(first, stop)
            found.append(leaders[~one.soft[rows]])
        leaders, copies = np.unique(np.concatenate(found), return_counts=True)
        kept = self._stays.has(leaders)
        leaders, copies = leaders[kept], copies[kept]
        order = np.lexsort((leaders, -copies))[:LARGEST]
        firsts = self._firsts
        made = []
        for leader, name, count in zip(leaders[order], self._names(leaders[order]), copies[order], strict=True):
            shard = int(np.searchsorted(firsts, leader, side="right")) - 1
            (text,) = texts_of(self.spools[shard], self.cut[shard].field, np.array([leader - firsts[shard]]))
            made.append({"kept": name, "copies": int(count), "text": text[:EXCERPT]})
        return made
