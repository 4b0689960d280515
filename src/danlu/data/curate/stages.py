"""The stages that a recipe asks for, in the order in which they run. A new stage is a line here."""

from __future__ import annotations

from danlu.data.curate.boilerplate import Boilerplate
from danlu.data.curate.contamination.benchmark import fingerprint
from danlu.data.curate.contamination.stage import Decontaminate
from danlu.data.curate.language import Language
from danlu.data.curate.linear.shipped import QUALITY, TOXICITY, digest_of
from danlu.data.curate.normalise import Normalise
from danlu.data.curate.personal import Personal
from danlu.data.curate.quality.stage import Quality
from danlu.data.curate.quality_model import QualityModel
from danlu.data.curate.stage import Stage
from danlu.data.curate.toxicity.stage import Toxicity
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
    if section.quality_model is not None:
        path, other = section.quality_model.path, section.quality_model.perplexity_path
        digest = digest_of(path, QUALITY, "data.curate.quality_model.path")
        other_digest = other and digest_of(other, QUALITY, "data.curate.quality_model.perplexity_path")
        found.append(QualityModel(section.quality_model, digest, other_digest or ""))
    if section.toxicity is not None:
        path = section.toxicity.path
        found.append(Toxicity(section.toxicity, digest_of(path, TOXICITY, "data.curate.toxicity.path")))
    if (tests := section.decontaminate) is not None and tests.against:
        against = tuple(tests.against)
        found.append(Decontaminate(against, tests.words, tests.threshold, fingerprint(against)))
    if section.personal is not None:
        found.append(Personal(section.personal))
    return tuple(found)
