"""The stages that a recipe asks for, in the order in which they run. A new stage is a line here."""

from __future__ import annotations

from danlu.data.curate.boilerplate import Boilerplate
from danlu.data.curate.language import Language
from danlu.data.curate.normalise import Normalise
from danlu.data.curate.quality.stage import Quality
from danlu.data.curate.stage import Stage
from danlu.recipe.curate_sections import CurateSection


def stages_of(section: CurateSection) -> tuple[Stage, ...]:
    """One stage for each part of the section that is given: changes first, then what is cheap to judge."""
    found: list[Stage] = []
    if section.normalise is not None:
        found.append(Normalise(section.normalise))
    if section.boilerplate is not None:
        found.append(Boilerplate(section.boilerplate))
    if section.language is not None:
        found.append(Language(section.language))
    if section.quality is not None:
        found.append(Quality(section.quality))
    return tuple(found)
