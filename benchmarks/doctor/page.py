"""The page of injected faults for docs/, made from results."""

from __future__ import annotations

from typing import Any

from benchmarks.doctor.version import UNKNOWN

TITLE = """\
# Faults that are injected, and what the doctor says

<!-- Written by `python benchmarks/doctor/run.py --page docs/doctor-faults.md`; run that again instead of editing. -->

"""
HEAD = """\
Each fault is one switch on the real trainer: a recipe, a batch that is changed on its way, or one method that does what is wrong.
The model is tiny and trains for up to 200 steps on one thread of a CPU. Its *twin* is the same recipe and seed without the
switch. `make doctor-bench` runs them all with three seeds each; [the doctor](doctor.md) looks every 10 steps here and costs what
it costs.

What counts is what `danlu train` says of itself: audits ahead of the first step, and findings inside the loop, of severity
warning or above. **Named**: the very first one names the cause. **Noticed**: there is any. **Delay**: steps from the first at
which it could be seen (from the start on; where the fault sets in; or, for a rate that is too high, where the loss leaves the
twin's) to the first one, in the median. A run with a fault ends with its first finding in the loop; a twin trains to its end.

The rules were written, and thresholds and twins mended, with these runs in sight: the table says what the doctor does with faults
of these kinds, not how it fares with unseen ones. `make doctor-score` judges [logs that nobody here wrote](doctor.md).

"""

AFTER = """

## Beside others

Quoted from publications and measured by their authors, none of it here: not the same faults and not the same programs. What they
are measured on is in the last column.

| | Names the cause | Notices | False alarms | On |
|---|---|---|---|---|
| best of the tools compared by a study of published faulty programs | 52 % | | | 52 programs |
| an independent study of such tools | | recall 0.55, precision 0.37 | | real faulty programs |
| a tool that notices almost all | | nearly all | 133 of 186 healthy models | models of its authors |
| a rule "loss is not decreasing" of a well-known tool | | | 75 of 75 | healthy GPT training logs |
| TrainCheck, which needs a reference run | | 18 of 20 | | silent errors |
"""


def pooled(figures: dict[str, Any]) -> list[str]:
    """What must be known ahead of the figures: whether runs are missing, and whether they are of one version of the code."""
    versions, wanted = figures["versions"], figures["wanted"]
    told = []
    if figures["faults"] < wanted["faults"] or figures["twins"] < wanted["twins"]:
        told.append(
            f"> **Not the whole benchmark**: {figures['faults']} of {wanted['faults']} runs with a fault, {figures['twins']} of "
            f"{wanted['twins']} twins."
        )
    if len(versions) > 1 or UNKNOWN in versions:
        listed = ", ".join(f"{code}: {count}" for code, count in versions.items())
        told.append(
            "> **Pooled**: these results were not all made by one known version of the code (version: results – "
            f"{listed}). Rules and faults may have changed between them; `make doctor-bench` makes a table of one version."
        )
    return [*">\n".join(f"{one}\n" for one in told).splitlines(), ""] if told else []


def page(rows: list[dict[str, Any]], twins: list[tuple[str, int, list[Any]]], figures: dict[str, Any]) -> str:
    """Markdown; `rows` have fault, says, runs, named, noticed, delay, said."""
    flagged = [f"{name.removeprefix('twin: ')} (seed {seed}): {told[0][1]}" for name, seed, told in twins if told]
    lines = [
        TITLE
        + "\n".join([*pooled(figures), HEAD])
        + f"Of {figures['faults']} runs with {figures['kinds']} faults the cause is named in {figures['named']:.1%} and the "
        f"fault noticed in {figures['noticed']:.1%}, {figures['median_delay_steps']:g} steps late in the median.",
        f"Of {figures['twins']} healthy twins {figures['twins_clean']:.1%} hear nothing"
        + (f" ({'; '.join(flagged)})." if flagged else ".")
        + (f" Version of the code: {', '.join(figures['versions'])}." if figures["versions"] else ""),
        "",
        "| Fault | What is wrong | Named | Noticed | Delay | First finding |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        delay = "–" if row["delay"] is None else f"{row['delay']:.0f}"
        said = ", ".join("nothing" if one == "-" else f"`{one}`" for one in row["said"])
        named, noticed = (f"{row[kind]}/{row['runs']}" for kind in ("named", "noticed"))
        lines.append(f"| {row['fault']} | {row['says']} | {named} | {noticed} | {delay} | {said} |")
    return "\n".join(lines) + AFTER
