"""Figures of texts whose words do not stand apart, danlu's own: what the rules for English ask, asked of characters."""

from __future__ import annotations

from danlu.data.arrays import Array
from danlu.data.curate.quality import kernels as k
from danlu.data.curate.quality.gopher import bullet_lines, ellipsis_lines
from danlu.data.curate.quality.measures import Measures
from danlu.data.curate.quality.rule import Rule


def characters(m: Measures) -> Array:
    """Characters without blanks."""
    return m[k.CHARACTERS]


def letters(m: Measures) -> Array:
    """Share of characters that are letters, of whatever script."""
    return m.share(k.LETTERS, k.CHARACTERS)


def punctuation(m: Measures) -> Array:
    """Share of characters that are punctuation or symbols."""
    return m.share(k.SIGNS, k.CHARACTERS)


def sentence_length(m: Measures) -> Array:
    """Mean characters of a sentence, or of a line that ends without one."""
    found: Array = m[k.CHARACTERS] / (m[k.SENTENCES] + m[k.LINES] - m[k.ENDED_LINES]).clip(1)
    return found


def common_characters(m: Measures) -> Array:
    """Different ones of ten characters that hardly any Chinese text does without."""
    return m[k.COMMON_CHARACTERS]


def unreadable(m: Measures) -> Array:
    """Share of characters that are replacement characters, of private use or unassigned."""
    return m.share(k.UNREADABLE, k.CHARACTERS)


CHINESE = [
    Rule("chinese", "least_characters", characters),
    Rule("chinese", "most_characters", characters),
    Rule("chinese", "least_letters", letters),
    Rule("chinese", "least_punctuation", punctuation),
    Rule("chinese", "most_punctuation", punctuation),
    Rule("chinese", "most_sentence_length", sentence_length),
    Rule("chinese", "least_common_characters", common_characters, language="zh"),
    Rule("chinese", "most_ellipsis_lines", ellipsis_lines),
    Rule("chinese", "most_bullet_lines", bullet_lines),
    Rule("chinese", "most_unreadable", unreadable),
]
