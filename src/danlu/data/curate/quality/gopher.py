"""Figures that Gopher's MassiveText judges by (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1 and table A1)."""

from __future__ import annotations

from functools import partial

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.quality import kernels as k
from danlu.data.curate.quality.measures import Measures
from danlu.data.curate.quality.rule import Rule


def words(m: Measures) -> Array:
    """Words."""
    return m[k.WORDS]


def word_length(m: Measures) -> Array:
    """Mean characters of a word; a Korean syllable, which has two letters or three, counts as two."""
    return m.share(k.WORD_CHARACTERS, k.WORDS)


def symbols(m: Measures) -> Array:
    """Hash signs, or ellipses if there are more, for each word."""
    return np.maximum(m.share(k.HASHES, k.TOKENS), m.share(k.ELLIPSES, k.TOKENS))


def bullet_lines(m: Measures) -> Array:
    """Share of lines that begin with a bullet, if there are two or more."""
    return m.of_lines(k.BULLET_LINES)


def ellipsis_lines(m: Measures) -> Array:
    """Share of lines that end in an ellipsis, if there are two or more."""
    return m.of_lines(k.ELLIPSIS_LINES)


def alphabetic_words(m: Measures) -> Array:
    """Share of what stands between blanks that has a letter."""
    return m.share(k.ALPHABETIC_WORDS, k.TOKENS)


def stop_words(m: Measures) -> Array:
    """Different ones of eight English stop words."""
    return m[k.STOP_WORDS]


def duplicate_lines(m: Measures) -> Array:
    """Share of lines that equal an earlier one."""
    return m.share(k.REPEATED_LINES, k.LINES)


def duplicate_paragraphs(m: Measures) -> Array:
    """Share of paragraphs, between blank lines, that equal an earlier one."""
    return m.share(k.REPEATED_PARAGRAPHS, k.PARAGRAPHS)


def duplicate_line_characters(m: Measures) -> Array:
    """Share of characters in lines that equal an earlier one."""
    return m.share(k.REPEATED_LINE_CHARACTERS, k.CHARACTERS)


def duplicate_paragraph_characters(m: Measures) -> Array:
    """Share of characters in paragraphs that equal an earlier one."""
    return m.share(k.REPEATED_PARAGRAPH_CHARACTERS, k.CHARACTERS)


def top_gram(length: int, m: Measures) -> Array:
    """Share of the characters of words in the commonest row of so many words."""
    return m[k.TOP_2 + length - 2]


def duplicate_grams(length: int, m: Measures) -> Array:
    """Share of the characters of words in rows of so many words that equal an earlier one."""
    return m[k.REPEATED_5 + length - 5]


GOPHER = [
    Rule("gopher", "least_words", words),
    Rule("gopher", "most_words", words),
    Rule("gopher", "least_word_length", word_length),
    Rule("gopher", "most_word_length", word_length),
    Rule("gopher", "most_symbols", symbols),
    Rule("gopher", "most_bullet_lines", bullet_lines),
    Rule("gopher", "most_ellipsis_lines", ellipsis_lines),
    Rule("gopher", "least_alphabetic_words", alphabetic_words),
    Rule("gopher", "least_stop_words", stop_words, language="en"),
]
REPETITION = [
    Rule("repetition", "most_duplicate_lines", duplicate_lines),
    Rule("repetition", "most_duplicate_paragraphs", duplicate_paragraphs),
    Rule("repetition", "most_duplicate_line_characters", duplicate_line_characters),
    Rule("repetition", "most_duplicate_paragraph_characters", duplicate_paragraph_characters),
    *(Rule("repetition", f"most_top_{length}_gram", partial(top_gram, length)) for length in range(2, 5)),
    *(Rule("repetition", f"most_duplicate_{length}_grams", partial(duplicate_grams, length)) for length in range(5, 11)),
]
