"""Figures of web pages: those of C4 (Raffel et al. 2020, section 2.2) and those that FineWeb added (Penedo et al. 2024, 3.6)."""

from __future__ import annotations

from danlu.data.arrays import Array
from danlu.data.curate.quality import kernels as k
from danlu.data.curate.quality.gopher import duplicate_line_characters
from danlu.data.curate.quality.measures import Measures
from danlu.data.curate.quality.rule import Rule


def sentences(m: Measures) -> Array:
    """Ends of sentences: a sign such as . ! ? before a blank, 。！？ before anything."""
    return m[k.SENTENCES]


def longest_word(m: Measures) -> Array:
    """Characters of the longest word."""
    return m[k.LONGEST_WORD]


def curly_brackets(m: Measures) -> Array:
    """Opening curly brackets."""
    return m[k.CURLY]


def lorem_ipsum(m: Measures) -> Array:
    """Times that the words lorem ipsum stand in a row."""
    return m[k.LOREM_IPSUM]


def punctuated_lines(m: Measures) -> Array:
    """Share of lines that end as a sentence does, a closing quote or bracket allowed behind it, if there are two or more."""
    return m.of_lines(k.ENDED_LINES)


def short_lines(m: Measures) -> Array:
    """Share of lines of 30 columns or less, of which a Chinese character has two."""
    return m.share(k.SHORT_LINES, k.LINES)


def lines_for_a_word(m: Measures) -> Array:
    """Line ends for each word; two characters of Chinese are a word."""
    found: Array = m[k.LINE_ENDS] / (m[k.WORDS] + m[k.UNSPACED] / 2).clip(1)
    return found


C4 = [
    Rule("c4", "least_sentences", sentences),
    Rule("c4", "most_word_length", longest_word),
    Rule("c4", "most_curly_brackets", curly_brackets),
    Rule("c4", "most_lorem_ipsum", lorem_ipsum),
]
FINEWEB = [
    Rule("fineweb", "least_punctuated_lines", punctuated_lines),
    Rule("fineweb", "most_short_lines", short_lines),
    Rule("fineweb", "most_duplicate_line_characters", duplicate_line_characters),
    Rule("fineweb", "most_lines_for_a_word", lines_for_a_word),
]
