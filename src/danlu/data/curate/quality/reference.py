"""The table of rules for docs/, made from the rules and the recipe's sections."""

from __future__ import annotations

from danlu.data.curate.quality.all import RULES
from danlu.recipe.quality_sections import QualitySection

_HEAD = """\
# The rules of quality

<!-- Written by `python -m danlu.data.curate.quality` from src/danlu/data/curate/quality/; change that, then run it again. -->

What `data.curate.quality` holds a text to, rule by rule: the figure that is measured, and the limit that it must keep unless the
recipe gives another. Rules judge in the order of this page, and the first that a text fails is the reason that is given. They are
soft: with `noise_ratio` some of what fails comes back. [How curation works](curation.md).

A word is what stands between blanks, without the signs at its ends. Texts most of whose letters are of a script without blanks
between words are held to the rules in `chinese` instead of those in `gopher`, and elsewhere two of their characters count as a
word. A paragraph stands between empty lines; sizes are in characters without blanks.
"""


def rules_markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    family = ""
    for rule in RULES:
        section = type(QualitySection.model_fields[rule.family].default)
        if rule.family != family:
            family = rule.family
            about = " ".join((section.__doc__ or "").split())
            parts.append(f"## `{family}`\n\n{about}\n\n| Rule | Limit | Measured |\n|---|---|---|")
        side = "at least" if rule.field.startswith("least_") else "at most"
        only = f" Only texts in `{rule.language}`." if rule.language else ""
        limit = section.model_fields[rule.field].default
        parts.append(f"| `{rule.field}` | {side} {limit:,g} | {rule.what}{only} |")
        if rule is RULES[-1] or RULES[RULES.index(rule) + 1].family != family:
            parts.append("")
    return "\n".join(parts)
