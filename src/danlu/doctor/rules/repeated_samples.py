"""The same samples come again before the data is through."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/repeated"
POINTS = 10
RECENT = 20
MOST = 0.2


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL, POINTS).finite
    share = float(one.values[-RECENT:].mean())
    if share < MOST:
        return None
    step = int(one.steps[int(np.argmax(one.values > 0))])
    return Finding(
        "repeated_samples",
        Severity.WARNING,
        0.95,
        Text(f"{share:.0%} of the samples were seen before in the same epoch", f"{share:.0%} 的样本在同一轮中已出现过"),
        (
            Text(
                f"{SIGNAL} is {share:.0%} in the mean of the last {min(RECENT, len(one))} steps; the first at step {step}",
                f"最近 {min(RECENT, len(one))} 步 {SIGNAL} 平均为 {share:.0%}；首次出现在第 {step} 步",
            ),
        ),
        Text(
            "give every loader worker and rank its own part of the order; remove duplicates from the data",
            "让每个加载进程和 rank 取各自的数据；去除重复数据",
        ),
        {},
        (Text("text that holds the same passages many times: deduplicate it", "文本本身大量重复：去重"),),
        step,
        Chart(SIGNAL, one),
    )


RULE = Rule(
    "repeated_samples",
    Text("samples that come again within an epoch", "同一轮内重复出现的样本"),
    (SIGNAL,),
    f"{MOST:.0%} of the last {RECENT} batches",
    "in an epoch every sample comes once; whole windows of text that are equal by chance are rare",
    "a hash of every sample a step, and 100 bytes for each of the last million",
    Severity.WARNING,
    check,
    frozenset({"overfitting", "periodic_loss", "plateau"}),
)
