"""The stage that leaves out toxic documents; noise control never brings one back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.linear.shipped import TOXICITY, model_at
from danlu.data.curate.stage import Rejected
from danlu.data.curate.toxicity import matcher
from danlu.data.read import Document
from danlu.recipe.text_sections import ToxicitySection

_SENTENCE = re.compile(r"[^.!?。！？\n]{1,400}[.!?。！？\n]*")
_LETTERS = re.compile(r"[^\W\d_]")
SLACK = 1e-6
"""Characters by which sums may be off."""


@dataclass(frozen=True)
class Toxicity:
    """Judges by words first, then by the model what is left."""

    settings: ToxicitySection
    digest: str = ""
    """SHA-256 of the model's file: another model is another stage."""
    name: str = "toxicity"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        found: list[Document | Rejected] = list(documents)
        if self.settings.words is not None:
            from danlu.data.curate.toxicity.scan import suspects  # brings a compiler, which only curation needs

            for number in suspects([document.text for document in documents]):
                share = toxic_share(documents[number].text)
                if share > self.settings.words:
                    found[number] = Rejected(documents[number], "words", round(share, 4))
        if self.settings.model is not None:
            left = [number for number, one in enumerate(found) if isinstance(one, Document)]
            left = self._open(left, [documents[number].text for number in left], self.settings.model)
            for number, chance in zip(left, self.chances([documents[number].text for number in left]), strict=True):
                if chance > self.settings.model:
                    found[number] = Rejected(documents[number], "model", round(chance, 4))
        return found

    def _open(self, numbers: Sequence[int], texts: Sequence[str], limit: float) -> list[int]:
        """Those whose mean chance may exceed the limit for all that their first sentences say; of most texts a few are enough."""
        heads = [_head(text, 2 * (1 - limit) * len(text)) for text in texts]
        return [
            number
            for number, text, pieces, chances in zip(numbers, texts, heads, self._by_sentence(heads), strict=True)
            if np.dot(1 - chances, [len(piece) for piece in pieces]) <= (1 - limit) * len(text) + SLACK
        ]

    def chances(self, texts: Sequence[str]) -> list[float]:
        """Mean chance of being toxic over a text's sentences, each by its length."""
        pieces = [list(sentences(text)) for text in texts]
        return [
            float(np.average(chances, weights=[len(piece) for piece in parts])) if parts else 0.0
            for parts, chances in zip(pieces, self._by_sentence(pieces), strict=True)
        ]

    def _by_sentence(self, pieces: Sequence[Sequence[str]]) -> list[Array]:
        """The chance of each sentence of each text."""
        if not pieces:
            return []
        flat = model_at(self.settings.path, TOXICITY).chances([piece for parts in pieces for piece in parts])
        found: list[Array] = np.split(flat, np.cumsum([len(parts) for parts in pieces], dtype=np.int64)[:-1])
        return found


def toxic_share(text: str) -> float:
    """Weight of the toxic words a word of the text."""
    return sum(hit.weight for hit in matcher.hits(text)) / matcher.size(text)


def sentences(text: str) -> Iterator[str]:
    """The sentences and lines of a text; of a long one, pieces."""
    for match in _SENTENCE.finditer(text, 0, 1 << 20):
        if _LETTERS.search(match[0]):
            yield match[0]


def _head(text: str, characters: float) -> list[str]:
    """Its first sentences, until they have so many characters."""
    found = []
    for sentence in sentences(text):
        found.append(sentence)
        characters -= len(sentence)
        if characters <= 0:
            break
    return found
