"""The samples of a batch follow each other in the text."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/neighbours"
POINTS = 10
SHARE = 0.5


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL, POINTS).finite
    share = float(np.mean(one.values))
    if share < SHARE:
        return None
    return Finding(
        "unshuffled",
        Severity.WARNING,
        0.9,
        Text("the data is not shuffled: a batch is one stretch of text", "数据没有打乱：一个批次是一段连续文本"),
        (
            Text(
                f"{share:.0%} of the samples of a batch begin with the token at which the one before ends, over {len(one)} steps",
                f"在 {len(one)} 步中，批次里 {share:.0%} 的样本紧接上一个样本的结尾",
            ),
        ),
        Text("shuffle samples over the whole data", "在全部数据上打乱样本"),
        {},
        (),
        int(one.steps[0]),
    )


RULE = Rule(
    "unshuffled",
    Text("batches of samples that follow each other in the text", "批次由连续文本组成"),
    (SIGNAL,),
    f"{SHARE:.0%} of the samples of a batch, in the mean of {POINTS} steps or more",
    "shuffled samples meet by the chance that two tokens are equal: some percent",
    "one comparison of a token a sample and step",
    Severity.WARNING,
    check,
    frozenset({"periodic_loss", "oscillation", "spike", "odd_batches"}),
)
