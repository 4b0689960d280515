"""Every epoch has the samples in the same order."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/same_order"
POINTS = 5
SHARE = 0.9


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL, POINTS).finite
    samples, batch = evidence.number("run.epoch_samples"), evidence.number("train.global_batch")
    if samples is None or batch is None or samples < 4 * batch or batch < 4:
        return None  # so few samples or rows share a distance by chance
    share = float(np.median(one.values))
    if share < SHARE:
        return None
    return Finding(
        "fixed_order",
        Severity.WARNING,
        0.95,
        Text("every epoch has the samples in the same order", "每一轮的样本顺序都相同"),
        (
            Text(
                f"of the samples that were seen before, {share:.0%} of a batch came at one and the same distance, over "
                f"{len(one)} steps",
                f"在 {len(one)} 步中，每个批次里 {share:.0%} 的重复样本与上次出现相隔同样的距离",
            ),
        ),
        Text("shuffle with another seed every epoch", "每轮使用不同的种子打乱"),
        {},
        (),
        int(one.steps[0]),
    )


RULE = Rule(
    "fixed_order",
    Text("the same order of samples in every epoch", "每轮样本顺序相同"),
    (SIGNAL, "run.epoch_samples"),
    f"{SHARE:.0%} of a batch at one distance, in the median of {POINTS} steps or more of later epochs",
    "in another order, samples of a batch were far from each other in the epoch before",
    "a look into the table of hashes a step",
    Severity.WARNING,
    check,
    frozenset({"periodic_loss"}),
)
