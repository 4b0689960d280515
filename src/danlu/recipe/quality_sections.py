"""Sections of the recipe: the rules by which a text is found good enough, with their limits.

Each field is a rule of the same name in `data/curate/quality/`; null switches it off. `least_` and `most_` are what still passes.
"""

from __future__ import annotations

from pydantic import Field

from danlu.recipe.section import Section


class GopherSection(Section):
    """Rules of Gopher's MassiveText for texts whose words stand apart (Rae et al. 2021, appendix A.1.1)."""

    least_words: int | None = Field(50, ge=0, description="Words.")
    most_words: int | None = Field(100_000, ge=1, description="Words.")
    least_word_length: float | None = Field(3.0, ge=0, description="Mean characters of a word.")
    most_word_length: float | None = Field(10.0, ge=0, description="Mean characters of a word.")
    most_symbols: float | None = Field(0.1, ge=0, description="Hash signs, or ellipses, for each word.")
    most_bullet_lines: float | None = Field(0.9, ge=0, le=1, description="Share of lines that begin with a bullet.")
    most_ellipsis_lines: float | None = Field(0.3, ge=0, le=1, description="Share of lines that end in an ellipsis.")
    least_alphabetic_words: float | None = Field(0.8, ge=0, le=1, description="Share of words that have a letter.")
    least_stop_words: int | None = Field(
        2, ge=0, le=8, description="How many of the, be, to, of, and, that, have, with occur; for English alone."
    )


class RepetitionSection(Section):
    """Rules of Gopher's MassiveText on text that repeats itself (Rae et al. 2021, table A1), shares of characters unless said.

    Where words do not stand apart, two characters count as a word: 10 words are 20 characters of Chinese.
    """

    most_duplicate_lines: float | None = Field(0.3, ge=0, le=1, description="Share of lines that were there before.")
    most_duplicate_paragraphs: float | None = Field(0.3, ge=0, le=1, description="Share of paragraphs that were there before.")
    most_duplicate_line_characters: float | None = Field(0.2, ge=0, le=1, description="In lines that were there before.")
    most_duplicate_paragraph_characters: float | None = Field(0.2, ge=0, le=1, description="In such paragraphs.")
    most_top_2_gram: float | None = Field(0.2, ge=0, le=1, description="In the commonest two words in a row.")
    most_top_3_gram: float | None = Field(0.18, ge=0, le=1, description="In the commonest three words in a row.")
    most_top_4_gram: float | None = Field(0.16, ge=0, le=1, description="In the commonest four words in a row.")
    most_duplicate_5_grams: float | None = Field(0.15, ge=0, le=1, description="In five words in a row that were there before.")
    most_duplicate_6_grams: float | None = Field(0.14, ge=0, le=1, description="The same of six words.")
    most_duplicate_7_grams: float | None = Field(0.13, ge=0, le=1, description="The same of seven words.")
    most_duplicate_8_grams: float | None = Field(0.12, ge=0, le=1, description="The same of eight words.")
    most_duplicate_9_grams: float | None = Field(0.11, ge=0, le=1, description="The same of nine words.")
    most_duplicate_10_grams: float | None = Field(0.1, ge=0, le=1, description="The same of ten words.")


class C4Section(Section):
    """Rules of C4 on whole documents (Raffel et al. 2020, section 2.2); its rules on lines are in `data.curate.boilerplate`."""

    least_sentences: int | None = Field(3, ge=0, description="Sentences; C4's paper has 5, its code 3 of what is left of a page.")
    most_word_length: int | None = Field(1000, ge=1, description="Characters of the longest word.")
    most_curly_brackets: int | None = Field(0, ge=0, description="Opening curly brackets, which only program text has.")
    most_lorem_ipsum: int | None = Field(0, ge=0, description="Times that placeholder text begins.")


class FinewebSection(Section):
    """Rules that FineWeb added (Penedo et al. 2024, section 3.6)."""

    least_punctuated_lines: float | None = Field(0.12, ge=0, le=1, description="Share of lines that end like a sentence.")
    most_short_lines: float | None = Field(
        0.67, ge=0, le=1, description="Share of lines of 30 columns or less; a Chinese character has two."
    )
    most_duplicate_line_characters: float | None = Field(
        0.1, ge=0, le=1, description="Share of characters in lines that were there before."
    )
    most_lines_for_a_word: float | None = Field(0.3, ge=0, description="Line ends for each word.")


class ChineseSection(Section):
    """Counterparts for text whose words do not stand apart: Chinese above all, and Japanese, Thai and others like it."""

    least_characters: int | None = Field(100, ge=0, description="Characters, blanks not counted: Gopher's 50 words.")
    most_characters: int | None = Field(200_000, ge=1, description="Characters: Gopher's 100,000 words.")
    least_letters: float | None = Field(0.5, ge=0, le=1, description="Share of characters that are letters of any script.")
    least_punctuation: float | None = Field(
        0.01, ge=0, le=1, description="Share of characters that are punctuation: without any it is a list of keywords."
    )
    most_punctuation: float | None = Field(0.3, ge=0, le=1, description="Share of characters that are punctuation or symbols.")
    most_sentence_length: float | None = Field(
        200.0, ge=1, description="Mean characters from one end of a sentence or line to the next."
    )
    least_common_characters: int | None = Field(
        2, ge=0, le=10, description="How many of 的 一 是 不 了 在 有 和 这 我 occur; for Chinese alone."
    )
    most_ellipsis_lines: float | None = Field(0.3, ge=0, le=1, description="Share of lines that break off in an ellipsis.")
    most_bullet_lines: float | None = Field(0.9, ge=0, le=1, description="Share of lines that begin with a bullet.")
    most_unreadable: float | None = Field(
        0.002, ge=0, le=1, description="Share of characters that stand for bytes nobody could read, or belong to no script."
    )


class LanguageQualitySection(Section):
    """Rules for texts in one language, in place of those for all; such as shorter words in Korean."""

    language: str = Field(pattern="^[a-z]{2}$", description="ISO 639-1 code, as the language stage tells it.")
    gopher: GopherSection | None = Field(None, description="Gopher's rules for it; null: those for all languages.")
    repetition: RepetitionSection | None = Field(None, description="Rules on repetition for it; null: those for all languages.")
    c4: C4Section | None = Field(None, description="C4's rules for it; null: those for all languages.")
    fineweb: FinewebSection | None = Field(None, description="FineWeb's rules for it; null: those for all languages.")
    chinese: ChineseSection | None = Field(None, description="Rules for unspaced scripts for it; null: those for all languages.")


class QualitySection(Section):
    """Rules that a text must pass; all are soft, so that `noise_ratio` may bring back what fails. Code is not judged."""

    gopher: GopherSection | None = Field(GopherSection(), description="Gopher's rules; null: none of them.")
    repetition: RepetitionSection | None = Field(RepetitionSection(), description="Gopher's rules on repetition; null: none.")
    c4: C4Section | None = Field(C4Section(), description="C4's rules; null: none of them.")
    fineweb: FinewebSection | None = Field(FinewebSection(), description="FineWeb's rules; null: none of them.")
    chinese: ChineseSection | None = Field(ChineseSection(), description="Rules for unspaced scripts; null: none of them.")
    languages: list[LanguageQualitySection] = Field([], description="Other limits for single languages.")
