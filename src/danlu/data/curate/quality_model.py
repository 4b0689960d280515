"""The stage that scores documents by a trained model, and leaves out those that score low."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from danlu.data.curate.linear.shipped import QUALITY, model_at
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.text_sections import QualityModelSection


@dataclass(frozen=True)
class QualityModel:
    """Sets a document's score to its chance of being good."""

    settings: QualityModelSection
    digest: str = ""
    """SHA-256 of the model's file: another model is another stage."""
    name: str = "quality_model"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        found: list[Document | Rejected] = []
        minimum = self.settings.minimum
        chances = model_at(self.settings.path, QUALITY).chances([document.text for document in documents])
        for document, chance in zip(documents, chances.tolist(), strict=True):
            scored = document._replace(score=chance)
            # The model that danlu carries knows little of code; a user's own may have learnt it.
            judged = self.settings.path != "default" or not document.code
            low = minimum is not None and chance < minimum and judged
            found.append(Rejected(scored, "minimum", round(chance, 4), soft=True) if low else scored)
        return found
