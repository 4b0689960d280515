"""Several data ranks train on the same samples."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/shared"


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    share = float(np.median(one.values))
    if share <= 0:
        return None
    return Finding(
        "shared_batches",
        Severity.CRITICAL,
        0.97,
        Text("data ranks train on the same samples", "多个数据并行进程在训练相同的样本"),
        (
            Text(
                f"{share:.0%} of the data ranks had the batch of another one, in the median of {len(one)} steps",
                f"在 {len(one)} 步的中位数里，{share:.0%} 的进程与其他进程批次相同",
            ),
        ),
        Text("give each data rank its own slice of the global batch", "让每个数据并行进程取全局批次的不同部分"),
        {},
        (),
        int(one.steps[0]),
    )


RULE = Rule(
    "shared_batches",
    Text("data ranks that have the same samples", "数据并行进程样本相同"),
    (SIGNAL,),
    "any two in the median of the steps looked at",
    "a definition: ranks share a global batch out",
    "a hash of the batch and one exchange of a number between ranks a look",
    Severity.CRITICAL,
    check,
)
