"""The first pass over one shard of the input: read, let every stage judge, sketch what is left, and write it aside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from danlu.data.curate.spool import DONE, SpoolWriter
from danlu.data.curate.stage import Judged, Rejected, Stage
from danlu.data.dedup.plan import Plan
from danlu.data.dedup.sketch import SketchWriter
from danlu.data.ledger import Ledger
from danlu.data.read import Document, documents
from danlu.data.sources import SourceFile, format_of

SHARD_BYTES = 64 << 20
"""Bytes on disk at which a shard takes no further file."""
BATCH_BYTES, BATCH_DOCUMENTS = 4 << 20, 4096


@dataclass(frozen=True)
class Shard:
    """Files that are worked on together: what one process does at a time, and what is done again after an interruption."""

    number: int
    files: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        return f"{self.number:05d}"

    @property
    def source(self) -> int:
        return self.files[0].source

    @property
    def field(self) -> str:
        """Where the text stands in the lines that this shard leaves."""
        return self.files[0].text if _kind(self.files[0]) == "lines" else "text"


def _kind(file: SourceFile) -> str:
    return (format_of(file.path) or ("whole", ""))[0]


def shards(files: Sequence[SourceFile]) -> list[Shard]:
    """Cut a listing into shards: files in a row of one source and kind."""
    made: list[list[SourceFile]] = []
    size = 0
    for file in files:
        last = made[-1][-1] if made else None
        if last is None or size >= SHARD_BYTES or (last.source, _kind(last)) != (file.source, _kind(file)):
            made.append([])
            size = 0
        made[-1].append(file)
        size += file.size
    return [Shard(number, tuple(group)) for number, group in enumerate(made)]


def first_pass(shard: Shard, folder: Path, stages: Sequence[Stage], plan: Plan | None, spare: bool = False) -> None:
    """Make `folder`/<number of the shard>, complete or absent; nothing is done when it is there.

    With `spare` what fails softly stays, marked, for noise control to choose from.
    """
    place = folder / shard.name
    if place.exists():
        return
    partial = folder / f"{shard.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    ledger = Ledger()
    spool = SpoolWriter(partial, shard.field)
    sketches = None if plan is None else SketchWriter(partial, plan)
    for batch in _batches(documents(shard.files, ledger)):
        kept = _judged(batch, stages, spool, spare)
        texts = [one.document.text.encode() for one in kept]
        spool.keep(kept, texts)
        if sketches is not None:
            sketches.add(texts)
    spool.close()
    if sketches is not None:
        sketches.close()
    counts = {"documents": spool.documents, "text_bytes": spool.text_bytes, "tally": spool.tally.as_dict()}
    (partial / DONE).write_text(json.dumps(counts | {"ledger": ledger.as_dict()}), encoding="utf-8")
    os.replace(partial, place)


def _judged(batch: list[Document], stages: Sequence[Stage], spool: SpoolWriter, spare: bool) -> list[Judged]:
    """The documents that every stage lets pass; with `spare` those too that fail softly and nothing else."""
    judged = [Judged(document, document.text) for document in batch]
    for stage in stages:
        verdicts = stage.apply([one.document for one in judged])
        before, judged = judged, []
        for one, verdict in zip(before, verdicts, strict=True):
            now = verdict.document if isinstance(verdict, Rejected) else verdict
            if now.text is not one.document.text:
                spool.tally.change(stage.name, one.document.text, now.text)
            if not isinstance(verdict, Rejected):
                judged.append(one._replace(document=verdict))
            elif spare and verdict.soft:
                judged.append(Judged(verdict.document, one.before, one.failed or (stage.name, verdict)))
            else:
                spool.reject(stage.name, verdict, one)
    return judged


def _batches(found: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
