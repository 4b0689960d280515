"""The stage that leaves out documents which repeat test texts; noise control never brings one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from danlu.data.curate.contamination.benchmark import benchmark_texts
from danlu.data.curate.contamination.index import Index
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document

SHOWN = 200
"""Characters of the shared words that a rejection quotes."""


@dataclass(frozen=True)
class Decontaminate:
    """Compares with files of test texts."""

    against: tuple[str, ...]
    words: int
    threshold: float | None
    fingerprint: str = ""
    """Of the files: other tests are another stage."""
    name: str = "decontaminate"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        index = index_of(self)
        found: list[Document | Rejected] = []
        for document in documents:
            match = index.match(document.text)
            value = "" if match is None else f"{match.place}: {match.what[:SHOWN]}"
            found.append(document if match is None else Rejected(document, match.rule, value))
        return found


@cache
def index_of(stage: Decontaminate) -> Index:
    """The test texts, read once a process."""
    return Index(benchmark_texts(stage.against), stage.words, stage.threshold)
