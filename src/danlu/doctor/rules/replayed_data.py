"""After a resume the run gets batches that it had before."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/hash"
LEAST = 3


def check(evidence: Evidence, found: Found) -> Finding | None:
    if not evidence.resumes:
        raise NotEnoughData("the run was not resumed, or the log does not say where")
    one = evidence.need(SIGNAL, 2 * LEAST).finite
    for step in evidence.resumes:
        before, after = one.between(0, step - 1), one.between(step, np.inf)
        again = np.isin(after.values, before.values)
        if again.sum() < LEAST:
            continue
        first = after.steps[again][0]
        origin = before.steps[np.flatnonzero(before.values == after.values[again][0])[0]]
        return Finding(
            "replayed_data",
            Severity.WARNING,
            0.97,
            Text(f"the data began anew at the resume of step {step}", f"第 {step} 步恢复训练后数据从头开始"),
            (
                Text(
                    f"step {first} has the batch of step {origin}; {int(again.sum())} batches since the resume "
                    "were seen before it",
                    f"第 {first} 步的批次与第 {origin} 步相同；恢复后有 {int(again.sum())} 个批次此前已经出现",
                ),
            ),
            Text("restore the position in the data with the checkpoint", "随检查点一起恢复数据位置"),
            {},
            (),
            int(first),
        )
    return None


RULE = Rule(
    "replayed_data",
    Text("data that begins anew at a resume", "恢复训练时数据从头开始"),
    (SIGNAL, "resumes"),
    f"{LEAST} batches after a resume that are equal to batches before it",
    "a definition: a resume goes on where the data was",
    "a hash of the batch a step",
    Severity.WARNING,
    check,
    frozenset({"repeated_samples", "resume_step", "overfitting"}),
)
