"""The first pass over one shard of the input: read, let every stage judge, sketch what is left, and write it aside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from danlu.data.curate.personal import Personal, put_in
from danlu.data.curate.spool import DONE, SpoolWriter
from danlu.data.curate.stage import Judged, Rejected, Stage
from danlu.data.dedup.plan import Plan
from danlu.data.dedup.sketch import SketchWriter, back_to_back
from danlu.data.ledger import Ledger
from danlu.data.line_texts import LineTexts, line_texts
from danlu.data.read import Document, read
from danlu.data.sources import SourceFile, format_of

SHARD_BYTES = 64 << 20
"""Bytes on disk at which a shard takes no further file."""
PART_BYTES = 64 << 20
"""Bytes of the parts in which a large file of lines is read."""
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
    """Cut a listing into shards: files in a row of one source and kind, or parts of a large file of lines."""
    made: list[list[SourceFile]] = []
    size = 0
    for file in chain.from_iterable(map(_parts, files)):
        last = made[-1][-1] if made else None
        if last is None or size >= SHARD_BYTES or (last.source, _kind(last)) != (file.source, _kind(file)):
            made.append([])
            size = 0
        made[-1].append(file)
        size += file.size
    return [Shard(number, tuple(group)) for number, group in enumerate(made)]


def _parts(file: SourceFile) -> list[SourceFile]:
    """The file, or parts of about PART_BYTES of it where a reader may begin in the middle."""
    count = file.size // PART_BYTES
    if count < 2 or format_of(file.path) != ("lines", ""):
        return [file]
    cuts = [file.size * number // count for number in range(count + 1)]
    return [replace(file, size=stop - start, part=(start, stop)) for start, stop in pairwise(cuts)]


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
    spool = SpoolWriter(partial, shard.field, shard.files)
    sketches = None if plan is None else SketchWriter(partial, plan)
    for batch in _batches(read(shard.files, ledger, {} if stages else {"lines": line_texts})):
        if isinstance(batch, LineTexts):
            spool.keep_lines(batch)
            data, ends = batch.data, batch.ends
        else:
            kept = _judged(batch, stages, spool, spare)
            texts = [one.document.text.encode() for one in kept]
            spool.keep(kept, texts)
            data, ends = back_to_back(texts)
        if sketches is not None:
            sketches.add(data, ends)
    spool.close()
    if sketches is not None:
        sketches.close()
    counts = {
        "documents": spool.documents,
        "text_bytes": spool.text_bytes,
        "tally": spool.tally.as_dict(),
        "files": [file.path for file in shard.files],
    }
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
                if isinstance(stage, Personal):
                    spool.tally.replaced.update(put_in(one.document.text, now.text))
            if not isinstance(verdict, Rejected):
                judged.append(one._replace(document=verdict))
            elif spare and verdict.soft:
                judged.append(Judged(verdict.document, one.before, one.failed or (stage.name, verdict)))
            else:
                spool.reject(stage.name, verdict, one)
    return judged


def _batches(found: Iterable[Document | LineTexts]) -> Iterator[list[Document] | LineTexts]:
    """Documents in lists; what is together already stays so."""
    batch: list[Document] = []
    size = 0
    for one in found:
        if isinstance(one, Document):
            batch.append(one)
            size += len(one.text)
        if batch and (isinstance(one, LineTexts) or size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS):
            yield batch
            batch, size = [], 0
        if isinstance(one, LineTexts):
            yield one
    if batch:
        yield batch
