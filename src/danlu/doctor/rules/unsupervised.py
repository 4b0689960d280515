"""Hardly any token has a target."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/supervised"
LEAST = 0.01
RECENT = 5


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    recent = one.values[-RECENT:]
    share = float(np.median(recent))
    if share >= LEAST:
        return None
    fine = np.flatnonzero(one.values >= LEAST)
    step = int(one.steps[min(fine[-1] + 1, len(one) - 1)]) if len(fine) else int(one.steps[0])
    return Finding(
        "unsupervised",
        Severity.CRITICAL,
        0.95,
        Text(f"{share:.2%} of the tokens are supervised", f"只有 {share:.2%} 的 token 参与监督"),
        (
            Text(
                f"{SIGNAL} is {share:.3g} in the median of the last {len(recent)} steps",
                f"最近 {len(recent)} 步 {SIGNAL} 的中位数为 {share:.3g}",
            ),
        ),
        Text("look at the mask of one batch: template, truncation, ignored index", "检查一个批次的掩码：模板、截断、忽略下标"),
        {},
        (),
        step,
        Chart(SIGNAL, one),
    )


RULE = Rule(
    "unsupervised",
    Text("batches in which hardly any token has a target", "几乎没有 token 参与监督的批次"),
    (SIGNAL,),
    f"below {LEAST:.0%} of the tokens in the median of the last {RECENT} steps",
    "pre-training supervises nearly all tokens, instruction tuning commonly more than a tenth",
    "one comparison of the batch a step",
    Severity.CRITICAL,
    check,
    frozenset(
        {
            "data_bound",
            "end_unsupervised",
            "learning_rate_schedule",
            "nonfinite",
            "not_learning",
            "plateau",
            "unmoved_parameters",
            "vanishing_gradients",
        }
    ),
)
