"""Documents from all over a corpus, in bounded time: from token shards, or from the sources of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from danlu.data.arrays import Array
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import resolve
from danlu.data.split import place
from danlu.data.stream import TokenStream
from danlu.data.tokenizer import Tokenizer
from danlu.doctor.evidence import NotEnoughData
from danlu.recipe.data_sections import DataSection

STRETCH = 1 << 16
"""Tokens in a row; copies that lie near each other are seen, and so is a document of up to so many tokens as a whole."""


@dataclass(frozen=True)
class Sample:
    """Some documents of a split."""

    share: float
    """Of the split's tokens, or bytes, that were looked at."""
    documents: list[Array] | None
    """Token ids with begin and end; None: there are only texts."""
    tokenizer: Tokenizer | None
    read: list[str]
    """Texts, where there are no tokens."""

    def __len__(self) -> int:
        return len(self.read if self.documents is None else self.documents)

    @property
    def framed(self) -> list[Array]:
        """Token ids, begin and end included. NotEnoughData: there are none yet."""
        if self.documents is None:
            raise NotEnoughData("the data is not prepared yet; `danlu prepare` does it")
        return self.documents

    @cached_property
    def texts(self) -> list[str]:
        """What a model is to learn from, as text."""
        if self.documents is None or self.tokenizer is None:
            return self.read
        frame = {self.tokenizer.begin_id, self.tokenizer.end_id}
        return [self.tokenizer.decode([token for token in ids.tolist() if token not in frame]) for ids in self.documents]


def of_stream(stream: TokenStream, tokenizer: Tokenizer, tokens: int) -> Sample:
    """All documents of a stream of so many tokens; of a longer one those that begin in stretches that are spread evenly."""
    if stream.tokens <= tokens:
        begins = [0]
        length = stream.tokens
    else:
        length = min(STRETCH, tokens)
        count = max(1, tokens // length)
        begins = (np.arange(count) * (stream.tokens - length) // max(1, count - 1)).tolist()
    found: list[Array] = []
    for begin in begins:
        end = min(begin + length + STRETCH, stream.tokens)
        starts = [*stream.document_starts(begin, end).tolist(), end]
        found += [stream.window(a, b - a) for a, b in pairwise(starts) if a < begin + length]
    seen = sum(map(len, found))
    return Sample(min(1.0, seen / max(1, stream.tokens)), found, tokenizer, [])


def of_sources(data: DataSection, size: int) -> tuple[Sample, Sample]:
    """Training and held-out documents of about so many bytes; every file lends from its beginning, in proportion to its size.

    UserError: a source is at fault.
    """
    files = resolve(data.sources).files
    scale = size / max(1, sum(file.size for file in files))
    credit, seen = 0.0, 0
    sides: tuple[list[str], list[str]] = ([], [])
    for file in files:
        credit += file.size * min(1.0, scale)
        if credit <= 0 and scale < 1:
            continue
        for document in documents([file], Ledger(limit=1.0)):
            sides[place(document.text).split < data.validation_fraction].append(document.text)
            credit -= len(document.text.encode())
            seen += 1
            if credit <= 0 and scale < 1:
                break
    if not seen:
        raise NotEnoughData("data.sources: no text was read")
    train, validation = (Sample(min(1.0, scale), None, None, side) for side in sides)
    return train, validation
