"""What became of the documents of a job, for its report: stage by stage, source by source, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.noise import Noise
from danlu.data.curate.spool import Spool
from danlu.data.curate.tally import Distribution, Tally
from danlu.data.dedup.groups import Groups


class Fate(NamedTuple):
    """What becomes of the documents of a shard that no stage turned down for good, as (documents,) bool."""

    soft: Array
    """Failed a soft rule."""
    copy: Array
    """Is alike to something better."""
    spent: Array
    """Next to nothing is left of it without repeated paragraphs."""

    @property
    def clean(self) -> Array:
        """Kept for what it is."""
        found: Array = ~(self.soft | self.copy | self.spent)
        return found

    @property
    def candidate(self) -> Array:
        """May come back as noise."""
        found: Array = self.soft & ~(self.copy | self.spent)
        return found


@dataclass(frozen=True)
class Fates:
    """What becomes of the documents of all shards, told shard by shard as often as it is asked for, so that memory is of one."""

    spools: Sequence[Spool]
    found: Groups | None
    """The copies; None: they were not looked for."""

    def __iter__(self) -> Iterator[Fate]:
        first = 0
        for spool in self.spools:
            copy = np.zeros(spool.documents, bool)
            if self.found is not None:
                copy[self.found.among(first, first + spool.documents)[0]] = True
            yield Fate(spool.draws() > 0, copy, spool.left() >= 0)
            first += spool.documents


def account(
    sources: Sequence[int],
    spools: Sequence[Spool],
    fate: Iterable[Fate],
    noise: Noise | None,
    tally: Tally,
    names: Sequence[str],
) -> dict[str, Any]:
    """What the report says beside its totals. sources: of each shard. names: of the stages, in their order."""
    kept = Distribution()
    table: dict[int, dict[str, int]] = {}
    for number, (source, spool, one) in enumerate(zip(sources, spools, fate, strict=True)):
        stays = one.clean
        if noise is not None:
            stays[noise.drawn[number]] = True
        lengths = spool.lengths()[stays]
        kept.count(lengths, spool.languages()[stays], spool.scores()[stays])
        row = table.setdefault(source, dict.fromkeys(("read", "read_bytes", "kept", "kept_bytes"), 0))
        read = spool.counts["ledger"]
        figures = read["documents"], read["text_bytes"], int(stays.sum()), int(lengths.sum())
        for name, figure in zip(row, figures, strict=True):
            row[name] += figure
    return {
        "waterfall": waterfall(table, tally, names),
        "sources": [{"source": source, **row} for source, row in sorted(table.items())],
        "read_distribution": tally.seen.as_dict(),
        "kept_distribution": kept.as_dict(),
        "rule_bytes": dict(sorted(tally.rule_bytes.items())),
        "personal": dict(sorted(tally.replaced.items())),
        "samples": dict(sorted(tally.samples.items())),
        "noise": noise and noise.as_dict(),
    }


def waterfall(table: dict[int, dict[str, int]], tally: Tally, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Documents and bytes of text that were read, that each stage took or changed, and that are kept: a sum that is right."""

    def total(name: str) -> int:
        return sum(row[name] for row in table.values())

    rows = [{"stage": "read", "documents": total("read"), "bytes": total("read_bytes"), "changed": 0}]
    for stage in stages:
        rules = [rule for rule in tally.rules if rule.startswith(f"{stage}.")]
        out = sum(tally.rules[rule] for rule in rules), sum(tally.rule_bytes[rule] for rule in rules)
        size = tally.changed_bytes[stage] - out[1]
        rows.append({"stage": stage, "documents": -out[0], "bytes": size, "changed": tally.changed[stage]})
    rows.append({"stage": "kept", "documents": total("kept"), "bytes": total("kept_bytes"), "changed": 0})
    return rows
