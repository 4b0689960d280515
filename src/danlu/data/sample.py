"""The text that a tokenizer is trained on: spread over all files, bounded in bytes and in what it costs the trainer."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import SourceFile
from danlu.data.split import place
from danlu.recipe.data_sections import Source

DENSE_BYTES = 20_000_000
"""Bytes of text without spaces between words (Chinese, Japanese, Thai) at most. The trainer takes every run of letters for
a word and keeps all different ones: measured, 70 bytes of memory for each byte of Chinese, so about 1.4 GB."""


def training_sample(
    files: Sequence[SourceFile], sources: Sequence[Source], sample_bytes: int, validation_fraction: float
) -> list[str]:
    """Training documents of about `sample_bytes` UTF-8 bytes (more by less than one document), or all when there are fewer.

    Every file lends in proportion to its size on disk and its source's weight, from its beginning: a running credit of
    bytes decides whether the next document is taken, so that many small files are sampled evenly. Held-out documents
    are never taken. Bad records are passed over; the reading that follows counts them.
    """
    shares = [file.size * sources[file.source].weight for file in files]
    scale = sample_bytes / max(1.0, sum(shares))
    ledger = Ledger(limit=1.0)
    sample = _Thinned()
    credit = 0.0
    for file, share in zip(files, shares, strict=True):
        credit += share * scale
        if credit <= 0:
            continue
        for document in documents([file], ledger):
            where = place(document.text)
            if where.split < validation_fraction:
                continue
            credit -= len(document.text.encode("utf-8"))
            sample.add(document.text, where.weight)
            if credit <= 0:
                break
    return [text for _, text in sample.kept]


class _Thinned:
    """Texts with at most DENSE_BYTES of dense script. At the bound the half with the larger numbers goes, and stays out."""

    def __init__(self) -> None:
        self.below = 1.0
        self.kept: list[tuple[float, str]] = []
        self.dense = 0

    def add(self, text: str, number: float) -> None:
        """Take a text, unless its number (uniform in [0, 1)) is among those that were dropped."""
        if number >= self.below:
            return
        self.kept.append((number, text))
        self.dense += dense_bytes(text)
        while self.dense > DENSE_BYTES and len(self.kept) > 1:
            self.below /= 2
            self.kept = [(number, text) for number, text in self.kept if number < self.below]
            self.dense = sum(dense_bytes(text) for _, text in self.kept)


def dense_bytes(text: str) -> int:
    """UTF-8 bytes of Chinese and the like: all of theirs, three quarters of Cyrillic's or Greek's, none of ASCII's."""
    return (len(text.encode("utf-8")) - len(text)) * 3 // 2
