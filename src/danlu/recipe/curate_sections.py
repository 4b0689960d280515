"""Sections of the recipe: how documents are changed, judged and left out between reading and tokenising."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from danlu.recipe.quality_sections import QualitySection
from danlu.recipe.section import RESUMABLE, Section
from danlu.recipe.text_sections import DecontaminateSection, PersonalSection, QualityModelSection, ToxicitySection

LANGUAGES = (
    "am", "ar", "az", "be", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "et", "eu", "fa", "fi", "fr", "gu", "he",
    "hi", "hr", "hu", "hy", "is", "it", "ja", "ka", "kn", "ko", "ku", "lo", "lt", "lv", "ml", "mr", "ms", "nl", "no", "or",
    "pa", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "yo", "zh",
)  # fmt: skip
"""What can be told apart, as ISO 639-1 codes."""


class NormaliseSection(Section):
    """Text in one form: what a reader sees stays, what only bytes differ in goes. Code is left as it is, to the byte."""

    unicode: Literal["NFC", "NFKC", "none"] = Field(
        "NFC", description="Unicode form; NFKC also turns full width into half width, and superscripts into digits."
    )
    control_characters: bool = Field(
        True, description="Take out control and invisible characters; line ends become `\\n`, tabs stay."
    )
    mojibake: bool = Field(
        True, description="Repair lines that were decoded by the wrong table: UTF-8 as Windows-1252 or GBK, GBK as Latin-1."
    )
    whitespace: bool = Field(
        True,
        description="No blanks at the ends of lines, at most one empty line in a row, none around the text, no no-break blanks.",
    )


class BoilerplateSection(Section):
    """Lines that belong to a page rather than to its text, and are taken out of it. Code is left as it is."""

    scripts: bool = Field(True, description="Lines with the word JavaScript; C4's rule.")
    policies: bool = Field(True, description="Lines on terms of use, privacy and cookies; C4's rule.")
    registrations: bool = Field(True, description="Lines with an ICP number, another registration, or a copyright.")
    navigation: bool = Field(True, description="Lines of words from menus alone, Chinese and English.")
    citations: bool = Field(True, description="Marks such as [1] and [edit], but not their lines; C4's rule.")
    unfinished_lines: bool = Field(
        False, description="Lines that do not end as a sentence does; C4's rule, which takes headings and lists too."
    )


class LanguageSection(Section):
    """Which language a text is in, by a model that comes with a package; code has none. Later rules go by it."""

    keep: list[str] | None = Field(
        None, description="ISO 639-1 codes such as en and zh; texts in others are left out. null: all languages stay."
    )
    least_score: float = Field(
        0.0, ge=0, le=1, description="Score of the likeliest language below which a text is left out, whatever the language."
    )

    @field_validator("keep")
    @classmethod
    def _codes(cls, keep: list[str] | None) -> list[str] | None:
        if keep is not None and (wrong := [code for code in keep if code not in LANGUAGES]):
            raise ValueError(f"{wrong[0]!r} is no language that can be told; there are {' '.join(LANGUAGES)}")
        if keep == []:
            raise ValueError("an empty list would leave nothing; name languages, or set it to null to keep all")
        return keep


class ParagraphsSection(Section):
    """Paragraphs and long lines that many documents have: the first stays, the others go. Code is left as it is."""

    least_words: int = Field(
        10, ge=1, description="Words, or characters of unspaced scripts, from which a line or a paragraph counts."
    )
    most_copies: int = Field(3, ge=1, description="Kept documents that may have the same one; in more it is repeated.")


class DedupSection(Section):
    """Near-duplicates: MinHash LSH over words or, where words are not spaced, characters; the best copy of each group stays."""

    threshold: float = Field(
        0.8,
        ge=0.3,
        le=1,
        description="Jaccard similarity from which two documents count as copies; 1: only the same words in the same order.",
    )
    permutations: int = Field(112, ge=16, le=1024, description="Hash functions; more of them judge pairs more sharply.")
    rows: int | None = Field(
        None,
        ge=1,
        description="Hashes in a band, a divisor of permutations; null: as many as still find a pair at the threshold.",
    )
    shingle: int = Field(5, ge=1, le=32, description="Words, or characters of unspaced scripts, in a shingle.")
    verify: Literal["estimate", "exact"] = Field(
        "estimate", description="How a candidate pair is checked: by all its hashes, or by its true Jaccard."
    )

    paragraphs: ParagraphsSection | None = Field(
        None, description="Then take repeated paragraphs out of what is kept; null: they stay."
    )

    @field_validator("paragraphs", mode="before")
    @classmethod
    def _default(cls, value: Any) -> Any:
        return {} if value == "default" else value

    @model_validator(mode="after")
    def _whole_bands(self) -> DedupSection:
        if self.rows is not None and self.permutations % self.rows:
            raise ValueError(f"rows {self.rows} does not divide permutations {self.permutations}; choose a divisor")
        return self


class CurateSection(Section):
    """What is done to documents between reading and tokenising. `default` stands for a stage with its defaults."""

    normalise: NormaliseSection | None = Field(None, description="One form for the same text; null: as it was read.")
    boilerplate: BoilerplateSection | None = Field(
        None, description="Lines that belong to a page rather than to its text; null: they stay."
    )
    language: LanguageSection | None = Field(None, description="Find the language of each text; null: it is not asked.")
    quality: QualitySection | None = Field(None, description="Rules that a text must pass; null: none.")
    quality_model: QualityModelSection | None = Field(None, description="A trained score that a text must reach; null: none.")
    toxicity: ToxicitySection | None = Field(None, description="Leave out toxic texts; null: keep them.")
    personal: PersonalSection | None = Field(None, description="Replace personal data and secrets; null: as they are.")
    decontaminate: DecontaminateSection | None = Field(None, description="Leave out what repeats test texts; null: keep it.")
    noise_ratio: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="Share of the kept tokens that comes from texts that failed a soft rule and nothing else; 0.05 to 0.1 keeps "
        "the model used to text as it is.",
    )
    dedup: DedupSection | None = Field(None, description="Leave out near-duplicates; null: keep them.")
    workers: int = Field(
        0, ge=0, le=256, description="Processes; 0: one a core, if there is enough to do.", json_schema_extra=RESUMABLE
    )

    @field_validator(
        "normalise",
        "boilerplate",
        "language",
        "quality",
        "quality_model",
        "toxicity",
        "personal",
        "decontaminate",
        "dedup",
        mode="before",
    )
    @classmethod
    def _default(cls, value: Any) -> Any:
        return {} if value == "default" else value
