"""The stage that scores documents by a trained model, and leaves out those that score low."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from danlu.data.curate.linear.shipped import QUALITY, model_at, ngrams_at
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.text_sections import QualityModelSection


@dataclass(frozen=True)
class QualityModel:
    """Sets a document's score to its chance of being good."""

    settings: QualityModelSection
    digest: str = ""
    """SHA-256 of the model's file: another model is another stage."""
    perplexity_digest: str = ""
    """The same of the model of perplexity."""
    name: str = "quality_model"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        found: list[Document | Rejected] = []
        minimum = self.settings.minimum
        texts = [document.text for document in documents]
        chances = model_at(self.settings.path, QUALITY).chances(texts)
        for document, chance, perplexity in zip(documents, chances.tolist(), self.perplexities(texts), strict=True):
            scored = document._replace(score=chance)
            # The model that danlu carries knows little of code; a user's own may have learnt it.
            judged = self.settings.path != "default" or not document.code
            if minimum is not None and chance < minimum and judged:
                found.append(Rejected(scored, "minimum", round(chance, 4), soft=True))
            elif perplexity > (self.settings.most_perplexity or math.inf):
                found.append(Rejected(scored, "most_perplexity", round(perplexity, 4), soft=True))
            else:
                found.append(scored)
        return found

    def perplexities(self, texts: Sequence[str]) -> list[float]:
        """Of each text; the least there is when none is asked for."""
        path = self.settings.perplexity_path
        return [1.0] * len(texts) if path is None else ngrams_at(path).perplexities(texts).tolist()
