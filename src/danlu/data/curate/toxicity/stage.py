"""The stage that leaves out toxic documents; noise control never brings one back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danlu.data.curate.linear.shipped import TOXICITY, model_at
from danlu.data.curate.stage import Rejected
from danlu.data.curate.toxicity import matcher
from danlu.data.read import Document
from danlu.recipe.text_sections import ToxicitySection

_SENTENCE = re.compile(r"[^.!?。！？\n]{1,400}[.!?。！？\n]*")
_LETTERS = re.compile(r"[^\W\d_]")


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
            for number, document in enumerate(documents):
                share = toxic_share(document.text)
                if share > self.settings.words:
                    found[number] = Rejected(document, "words", round(share, 4))
        if self.settings.model is not None:
            left = [number for number, one in enumerate(found) if isinstance(one, Document)]
            for number, chance in zip(left, self.chances([documents[n].text for n in left]), strict=True):
                if chance > self.settings.model:
                    found[number] = Rejected(documents[number], "model", round(float(chance), 4))
        return found

    def chances(self, texts: Sequence[str]) -> list[float]:
        """Mean chance of being toxic over a text's sentences, each by its length."""
        if not texts:
            return []
        pieces = [sentences(text) for text in texts]
        flat = model_at(self.settings.path, TOXICITY).chances([piece for parts in pieces for piece in parts])
        ends = np.cumsum([len(parts) for parts in pieces], dtype=np.int64)[:-1]
        return [
            float(np.average(chances, weights=[len(piece) for piece in parts])) if parts else 0.0
            for parts, chances in zip(pieces, np.split(flat, ends), strict=True)
        ]


def toxic_share(text: str) -> float:
    """Weight of the toxic words a word of the text."""
    return sum(hit.weight for hit in matcher.hits(text)) / matcher.size(text)


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text; of a long one, pieces."""
    return [piece for piece in _SENTENCE.findall(text[: 1 << 20]) if _LETTERS.search(piece)]
