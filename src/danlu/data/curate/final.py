"""The last pass over one shard: what is kept goes into one file, what is not, with the reason, into another."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.lines import Lines, lines_of
from danlu.data.curate.spool import PLACES, REJECTED, Spool, rejection
from danlu.data.curate.tally import Tally
from danlu.data.dedup.groups import Sketches
from danlu.data.json_values import pick

KEPT, NOISE, LEFT_OUT = "kept", "noise", "rejected"
"""Folders of the result; each shard has a file in the first and the last, and in the second where something was drawn."""
EXACT, NEAR = "exact", "near"
PARAGRAPHS, NOTHING_LEFT = "paragraphs", "nothing_left"
"""The stage that takes repeated paragraphs out, and the rule by which a document goes of which next to nothing is left."""


class Copies(NamedTuple):
    """The documents of a shard for which there is a better copy, in order."""

    rows: Array
    """Their numbers in the shard, int64."""
    leaders: Array
    """The numbers of the better copies over all shards, int64."""
    names: list[str | None]
    """Where those are now: file and line of the result; None: nothing was left of it without repeated paragraphs."""


def last_pass(spool: Spool, field: str, folder: Path, first: int, copies: Copies, sketches: Sketches | None) -> Tally:
    """Write folder/kept/<shard>.jsonl and folder/rejected/<shard>.jsonl; tell of the copies.

    field: where the text stands in a line. first: number of the shard's first document over all shards. What failed a soft
    rule goes into neither file. What is rejected is written as it was before repeated paragraphs were taken out of it.
    """
    name = spool.folder.name
    kept, left_out = folder / KEPT / f"{name}.jsonl", folder / LEFT_OUT / f"{name}.jsonl"
    partial, aside = left_out.with_suffix(".partial"), kept.with_suffix(".partial")
    whole, words_left = spool.whole(), spool.left()
    leaves = words_left >= 0
    spent = np.flatnonzero(leaves & (spool.draws() == 0))
    leaves[copies.rows] = True
    tally = Tally()
    shutil.copyfile(spool.folder / REJECTED, partial)
    if len(copies.rows):
        assert sketches is not None
        pair = copies.rows + first, copies.leaders
        same, alike = sketches.same(*pair), sketches.estimates(*pair)
        lengths = whole.lengths()[copies.rows]
        for rule, rows in ((EXACT, same), (NEAR, ~same)):
            tally.count(f"dedup.{rule}", int(rows.sum()), int(lengths[rows].sum()))
        with partial.open("ab", buffering=1 << 20) as out:
            found = zip(
                _places(spool, copies.rows), lines_of(whole, copies.rows), copies.names, same.tolist(), alike.round(3).tolist(),
                strict=True,
            )  # fmt: skip
            for place, line, leader, is_same, value in found:
                rule, name = (EXACT, f"dedup.{EXACT}") if is_same else (NEAR, f"dedup.{NEAR}")
                if tally.wants(name):
                    tally.show(name, value, place, _text(line, field))
                out.write(rejection("dedup", rule, value, place, line, **({"kept": leader} if leader else {})))
    if spool.trimmed:
        rule, sizes = f"{PARAGRAPHS}.{NOTHING_LEFT}", whole.lengths()[spent].tolist()
        with partial.open("ab", buffering=1 << 20) as out:
            for place, line, words, length in zip(
                _places(spool, spent), lines_of(whole, spent), words_left[spent].tolist(), sizes, strict=True
            ):
                tally.turned_down(rule, words, place, partial_text(tally, rule, line, field), length)
                out.write(rejection(PARAGRAPHS, NOTHING_LEFT, words, place, line))
    stays = ~leaves & (spool.draws() == 0)
    if spool.trimmed:
        tally.resized(PARAGRAPHS, whole.lengths()[stays], spool.lengths()[stays])
    with Lines(spool) as lines:
        lines.copy(stays, aside)
    (spool.folder / LEFT_OUT).write_text(str(partial.stat().st_size))
    os.replace(partial, left_out)
    os.replace(aside, kept)
    return tally


def noise_pass(spool: Spool, field: str, folder: Path, drawn: Array, copies: Array) -> Tally:
    """Write folder/noise/<shard>.jsonl, and add what failed a soft rule and was not drawn to what is rejected.

    drawn, copies: rows in order; those of `copies` are alike to something better, or nothing is left of them without repeated
    paragraphs, and are never drawn.
    """
    whole = spool.whole()
    name = spool.folder.name
    rows = np.flatnonzero(spool.draws())
    stays = np.zeros(spool.documents, bool)
    stays[drawn] = True
    tally = Tally()
    if len(drawn):
        if spool.trimmed:
            tally.resized(PARAGRAPHS, whole.lengths()[drawn], spool.lengths()[drawn])
        with Lines(spool) as lines:
            lines.copy(stays, folder / NOISE / f"{name}.jsonl")
    rows = rows[~stays[rows]]
    lengths, alike = whole.lengths()[rows], np.isin(rows, copies)
    found = zip(
        spool.failures(rows), _places(spool, rows), lines_of(whole, rows), lengths.tolist(), alike.tolist(), strict=True
    )  # fmt: skip
    with (folder / LEFT_OUT / f"{name}.jsonl").open("r+b", buffering=1 << 20) as out:
        out.seek(int((spool.folder / LEFT_OUT).read_text()))
        out.truncate()  # what another call, which was broken off, has left
        for why, place, line, length, is_copy in found:
            rule = f"{why['stage']}.{why['rule']}"
            tally.turned_down(rule, why["value"], place, partial_text(tally, rule, line, field), length)
            more = {"also": "dedup"} if is_copy else {}
            out.write(rejection(why["stage"], why["rule"], why["value"], place, line, soft=True, **more))
    return tally


def partial_text(tally: Tally, rule: str, line: bytes, field: str) -> str:
    """The text of a line where the tally still wants to show one of the rule."""
    return _text(line, field) if tally.wants(rule) else ""


def texts_of(spool: Spool, field: str, rows: Array) -> Iterator[str]:
    """The texts of rows; `field`: where they stand in a line."""
    return (_text(line, field) for line in lines_of(spool, rows))


def _text(line: bytes, field: str) -> str:
    text = pick(json.loads(line), field)
    assert isinstance(text, str)
    return text


def _places(spool: Spool, rows: Array) -> Iterator[str]:
    wanted = np.zeros(spool.documents, bool)
    wanted[rows] = True
    with (spool.folder / PLACES).open("rb") as places:
        for place in compress(places, wanted.tolist()):
            yield place[:-1].decode()
