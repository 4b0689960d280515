"""The language of each text, told by ELD's n-grams of 60 languages, which come with the package `eldc`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import LanguageSection

UNKNOWN = "und"
"""ISO 639-2 for undetermined: a text without words."""


@dataclass(frozen=True)
class Language:
    """Notes languages, rejects those that are not wanted."""

    settings: LanguageSection
    name: str = "language"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        keep, least = self.settings.keep, self.settings.least_score
        found: list[Document | Rejected] = []
        for read in documents:
            if read.code:
                found.append(read)
                continue
            language, score = detect(read.text)
            document = read._replace(language=language)
            if keep is not None and language not in keep:
                found.append(Rejected(document, "other", language))
            elif score < least:
                found.append(Rejected(document, "unsure", round(score, 3)))
            else:
                found.append(document)
        return found


def detect(text: str) -> tuple[str, float]:
    """ISO 639-1 code and score in 0 to 1 of the likeliest language; und and 0 where there are no words."""
    result = _detector().detect_details(text)
    return result.language or UNKNOWN, float(result.scores.get(result.language, 0.0))


@cache
def _detector() -> Any:
    import eldc  # loads 20 MB of n-grams

    eldc.init()
    return eldc.instance()
