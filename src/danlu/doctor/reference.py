"""The table of rules for docs/, made from the rules."""

from __future__ import annotations

from danlu.doctor.evidence import MEANINGS
from danlu.doctor.rule import all_rules

_HEAD = """\
# The doctor's rules

<!-- Written by `python -m danlu.doctor` from the rules in src/danlu/doctor/rules/; change those, then run it again. -->

What each rule catches, the signals without which it says "not enough data" (`|` joins alternatives), its threshold and where that
comes from. Severity is the highest it gives. A symptom whose cause another rule names is told under that cause.
[How to use the doctor](doctor.md).

| Rule | Catches | Needs | Threshold | Origin | Cost | Severity | Explains |
|---|---|---|---|---|---|---|---|
"""

_SIGNALS = """\

## Signals

What a rule reads, by danlu's names. Imported logs are renamed to them where they use a usual name; the others can be renamed.

| Signal | Meaning |
|---|---|
"""


def rules_markdown() -> str:
    """The whole page."""
    rows = []
    for rule in sorted(all_rules(), key=lambda one: one.id):
        explains = ", ".join(f"`{name}`" for name in sorted(rule.explains))
        needs = "; ".join(f"`{need}`".replace(" | ", "` or `") for need in rule.needs)
        cells = (
            f"`{rule.id}`",
            rule.catches.en,
            needs,
            rule.threshold,
            rule.origin,
            rule.cost,
            rule.severity.name.lower(),
            explains,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    signals = [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]
    return _HEAD + "\n".join(rows) + "\n" + _SIGNALS + "\n".join(signals) + "\n"
