"""The last pass over one shard: what is kept goes into one file, what is not, with the reason, into another."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.lines import Lines, lines_of
from danlu.data.curate.spool import PLACES, REJECTED, Spool, rejection
from danlu.data.dedup.groups import Sketches

KEPT, LEFT_OUT = "kept", "rejected"
"""Folders of the result; each shard has a file in both."""
EXACT, NEAR = "exact", "near"


class Copies(NamedTuple):
    """The documents of a shard for which there is a better copy, in order."""

    rows: Array
    """Their numbers in the shard, int64."""
    leaders: Array
    """The numbers of the better copies over all shards, int64."""
    names: list[str]
    """Where those are now: file and line of the result."""


def last_pass(spool: Spool, folder: Path, first: int, copies: Copies, sketches: Sketches | None) -> Counter[str]:
    """Write folder/kept/<shard>.jsonl and folder/rejected/<shard>.jsonl; count the copies by rule.

    first: number of the shard's first document over all shards.
    """
    name = spool.folder.name
    kept, left_out = folder / KEPT / f"{name}.jsonl", folder / LEFT_OUT / f"{name}.jsonl"
    partial, aside = left_out.with_suffix(".partial"), kept.with_suffix(".partial")
    leaves = np.zeros(spool.documents, bool)
    leaves[copies.rows] = True
    counts: Counter[str] = Counter()
    shutil.copyfile(spool.folder / REJECTED, partial)
    if len(copies.rows):
        assert sketches is not None
        pair = copies.rows + first, copies.leaders
        same, alike = sketches.same(*pair), sketches.estimates(*pair)
        with partial.open("ab", buffering=1 << 20) as out, (spool.folder / PLACES).open("rb") as places:
            found = zip(
                _only(places, leaves), lines_of(spool, copies.rows), copies.names, same.tolist(), alike.tolist(), strict=True
            )
            for place, line, leader, is_same, jaccard in found:
                rule = EXACT if is_same else NEAR
                counts[f"dedup.{rule}"] += 1
                out.write(rejection("dedup", rule, round(jaccard, 3), place.rstrip(b"\n").decode(), line, kept=leader))
    with Lines(spool) as lines:
        lines.copy(~leaves, aside)
    os.replace(partial, left_out)
    os.replace(aside, kept)
    return counts


def _only(lines: Iterable[bytes], wanted: Array) -> Iterator[bytes]:
    return (line for line, want in zip(lines, wanted.tolist(), strict=True) if want)
