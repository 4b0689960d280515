"""The stage that holds texts to the rules: the first that one fails is the reason, and its figure stands beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.quality.measures import Measures
from danlu.data.curate.quality.rule import Rule
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.quality_sections import LanguageQualitySection, QualitySection

SPACED, UNSPACED = ("gopher",), ("chinese",)
"""Families that are for texts of one kind of script only."""


@dataclass(frozen=True)
class Quality:
    """Rejects, softly, what fails a rule. Rules for one language judge what was found to be in it."""

    settings: QualitySection
    name: str = "quality"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        measures = Measures([document.text.encode() for document in documents])
        language = np.array([document.language for document in documents])
        open_ = np.array([not document.code for document in documents], bool)
        found: list[Document | Rejected] = list(documents)
        for rule, limits in rules_of(self.settings, language):
            values = rule.figure(measures)
            fails = rule.fails(values, limits) & open_ & concerned(rule, measures, language)
            for index in np.flatnonzero(fails).tolist():
                found[index] = Rejected(documents[index], rule.name, round(float(values[index]), 4), soft=True)
            open_ &= ~fails
        return found


def rules_of(settings: QualitySection, language: Array) -> Iterator[tuple[Rule, Array]]:
    """The rules that are on, in their order, with their limits for texts in some languages, (texts,); NaN: it is off for one."""
    from danlu.data.curate.quality.all import RULES  # the measures are compiled code

    for rule in RULES:
        limits = np.full(len(language), limit_of(rule, settings))
        for other in settings.languages:
            if getattr(other, rule.family) is not None:
                limits[language == other.language] = limit_of(rule, other)
        if not np.isnan(limits).all():
            yield rule, limits


def limit_of(rule: Rule, settings: QualitySection | LanguageQualitySection) -> float:
    """The limit that settings give to a rule; NaN when it is off."""
    section = getattr(settings, rule.family)
    limit = None if section is None else getattr(section, rule.field)
    return np.nan if limit is None else float(limit)


def concerned(rule: Rule, measures: Measures, language: Array) -> Array:
    """Which texts a rule is for, (texts,) bool, by their script and language."""
    concerned: Array = np.ones(len(language), bool)
    if rule.family in UNSPACED:
        concerned = measures.unspaced
    elif rule.family in SPACED:
        concerned = ~measures.unspaced
    return concerned & (language == rule.language) if rule.language else concerned
