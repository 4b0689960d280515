"""Training documents that repeat what is held out for validation: its loss would flatter the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from danlu.data import read
from danlu.data.curate.contamination.index import Index
from danlu.data.ledger import Ledger, one_line
from danlu.data.read import Document
from danlu.data.sources import SourceFile
from danlu.data.split import place
from danlu.recipe.data_sections import DataSection

LISTED = "contaminated.jsonl"
"""In the prepared folder: where each such document was, the held-out one that it repeats, and the words that they share."""
SHOWN = 200


class HeldOut:
    """Compares with the held-out documents; what repeats one is counted and listed."""

    def __init__(self, index: Index, path: Path) -> None:
        self._index, self._path = index, path
        self._seen: set[str] = set()

    @property
    def repeated(self) -> int:
        """Training documents that were left out."""
        return len(self._seen)

    def repeats(self, document: Document) -> bool:
        """Whether a training document shares a run of words with a held-out one."""
        match = self._index.match(document.text)
        if match is None:
            return False
        where = one_line(document.place)
        if where not in self._seen:  # not again in the next pass over the source
            self._seen.add(where)
            line = {"place": where, "held_out": one_line(match.place), "words": match.what[:SHOWN]}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return True


def held_out(data: DataSection, files: Sequence[SourceFile], folder: Path) -> HeldOut | None:
    """What to compare training documents with; None when the recipe does not ask for it or holds nothing out."""
    section = data.curate and data.curate.decontaminate
    if not section or section.validation_words is None or not data.validation_fraction:
        return None
    found = (
        (document.place, document.text)
        for document in read.documents(files, Ledger())
        if place(document.text).split < data.validation_fraction
    )
    return HeldOut(Index(found, section.validation_words, None), folder / LISTED)
