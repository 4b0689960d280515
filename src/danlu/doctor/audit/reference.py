"""The table of audits for docs/, made from the audits."""

from __future__ import annotations

from danlu.doctor.audit.audit import all_audits
from danlu.doctor.audit.material import AT_START, TOKENS

_HEAD = f"""\
# The doctor's audits

<!-- Written by `python -m danlu.doctor` from the audits in src/danlu/doctor/audit/checks/; change those, then run it again. -->

What `danlu doctor audit` looks at before the first step. Of each split at most {TOKENS:,} tokens are read, in stretches that are
spread over it; those *at start* come ahead of every training too, and read at most {AT_START:,}. Where an audit lacks what
it needs it says "not enough data". [How to use the doctor](doctor.md).

| Audit | Catches | Needs | Threshold | Origin | Severity | At start | Explains |
|---|---|---|---|---|---|---|---|
"""


def audits_markdown() -> str:
    """The whole page."""
    rows = []
    for audit in all_audits():
        cells = (
            f"`{audit.id}`",
            audit.catches.en,
            audit.needs,
            audit.threshold,
            audit.origin,
            audit.severity.name.lower(),
            "yes" if audit.at_start else "",
            ", ".join(f"`{name}`" for name in sorted(audit.explains)),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join(rows) + "\n"
