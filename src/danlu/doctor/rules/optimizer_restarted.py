"""The optimizer lost its state."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "optimizer/updates"
SKIPPED = 0.5
"""Share of the steps that may have been skipped."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    fell = np.flatnonzero(np.diff(one.values) < 0)
    missing = np.flatnonzero(one.values < SKIPPED * one.steps)
    imported = evidence.facts.get("run.drawn") is False
    if len(fell):
        at = int(fell[0]) + 1
    elif len(missing) and one.values[missing[0]] > 0 and any(step <= one.steps[missing[0]] for step in evidence.resumes):
        at = int(missing[0])
    else:
        return None
    if imported and not evidence.resumes:
        return None
    return Finding(
        "optimizer_restarted",
        Severity.WARNING,
        0.95,
        Text("the optimizer lost its moments", "优化器丢失了动量状态"),
        (
            Text(
                f"at step {one.steps[at]} it has made {one.values[at]:.0f} updates by its own count",
                f"第 {one.steps[at]} 步，优化器自身计数仅为 {one.values[at]:.0f} 次更新",
            ),
        ),
        Text("load the optimizer's state with the weights", "随权重一起加载优化器状态"),
        {},
        (),
        int(one.steps[at]),
    )


RULE = Rule(
    "optimizer_restarted",
    Text("an optimizer whose moments were lost, as at a resume", "优化器动量丢失（如恢复训练时）"),
    (SIGNAL,),
    f"a count of updates that falls, or after a resume is below {SKIPPED:.0%} of the steps",
    "a definition; the rest may be steps that were skipped",
    "one number from the device a look",
    Severity.WARNING,
    check,
    frozenset({"resume_step", "spike"}),
)
