"""Sections of the recipe: stages of curation that judge or change texts by lists and trained models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from danlu.recipe.section import Section

PersonalKind = Literal["email", "phone", "id_card", "bank_card", "ip", "key"]
PERSONAL: tuple[PersonalKind, ...] = ("email", "phone", "id_card", "bank_card", "ip", "key")


class QualityModelSection(Section):
    """A linear model over hashed n-grams, trained on a folder of good and one of bad texts; of copies the best is kept by it."""

    path: str = Field(
        "default", description="A file that `danlu data train-scorer` wrote; `default`: the one that danlu carries."
    )
    minimum: float | None = Field(
        0.5, ge=0, le=1, description="Chance of being good below which a document is left out; null: it is only scored."
    )
    perplexity_path: str | None = Field(
        None, description="A file that `danlu data train-scorer --perplexity` wrote; null: perplexity is not looked at."
    )
    most_perplexity: float | None = Field(
        None,
        ge=1,
        description="Perplexity above which a document is left out: how many ways the model sees for a text to go on, in the "
        "mean, at each byte. train-scorer prints what good texts have.",
    )

    @model_validator(mode="after")
    def _both(self) -> QualityModelSection:
        if (self.perplexity_path is None) != (self.most_perplexity is None):
            given, other = ("most_perplexity", "perplexity_path")[:: 1 if self.perplexity_path is None else -1]
            raise ValueError(f"{given} is given without {other}; give both, or neither")
        return self


class ToxicitySection(Section):
    """Toxic words in English and Chinese, disguised ones too, and a trained model of toxic sentences."""

    words: float | None = Field(
        0.005,
        gt=0,
        le=1,
        description="Toxic words a word of text (two Chinese characters count as one; a slur counts twice, a doubtful word half) "
        "above which a document is left out; null: none is looked for.",
    )
    model: float | None = Field(
        0.95, gt=0, le=1, description="Mean chance of being toxic, over sentences, above which it is left out; null: no model."
    )
    path: str = Field(
        "default",
        description="The model, a file that `danlu data train-scorer` wrote with the toxic texts as --good; `default`: the one "
        "that danlu carries.",
    )

    @model_validator(mode="after")
    def _something(self) -> ToxicitySection:
        if self.words is None and self.model is None:
            raise ValueError("words and model are both null, so that nothing is looked for; leave one, or set toxicity to null")
        return self


class PersonalSection(Section):
    """Personal data and secrets, each replaced by a placeholder of its kind such as <EMAIL>."""

    kinds: list[PersonalKind] = Field(list(PERSONAL), min_length=1, description="What is replaced.")


class DecontaminateSection(Section):
    """Documents that hold what the model will be tested on."""

    against: list[str] = Field(
        [], description="Files, folders or globs of benchmarks: JSON lines, of which every text field counts, or plain text."
    )
    validation_words: int | None = Field(
        50,
        ge=8,
        le=1000,
        description="Words in a row that a training document must not share with one that is held out for validation (50 as in "
        "Lee et al. 2022); null: not compared.",
    )
    words: int = Field(
        13,
        ge=8,
        le=64,
        description="Words, or characters of unspaced scripts, in a row that must not be shared with a benchmark.",
    )
    threshold: float | None = Field(
        0.8,
        ge=0.3,
        le=0.99,
        description="Jaccard similarity to a whole benchmark text that counts as a copy; null: not compared.",
    )

    @model_validator(mode="after")
    def _something(self) -> DecontaminateSection:
        if not self.against and self.validation_words is None:
            raise ValueError("against is empty and validation_words null, so that there is nothing to compare with; name files")
        return self
