"""Tokens behind a position change what is predicted there."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/future"
LEAST = 1e-3


def check(evidence: Evidence, found: Found) -> Finding | None:
    above = evidence.need(SIGNAL).first_above(LEAST)
    if above is None:
        return None
    step, moved = above
    return Finding(
        "future_leak",
        Severity.CRITICAL,
        0.97,
        Text("the model sees the tokens that it is to predict", "模型能看到要预测的 token"),
        (
            Text(
                f"at step {step} other tokens behind the first half moved the loss of the first half by {moved:.2g} nats a token",
                f"第 {step} 步，改变后半段 token 使前半段的损失变化 {moved:.2g} 奈特/token",
            ),
        ),
        Text("make attention causal", "使用因果注意力掩码"),
        {},
        (),
        step,
    )


RULE = Rule(
    "future_leak",
    Text("attention that looks ahead", "注意力看到了后面的 token"),
    (SIGNAL,),
    f"{LEAST:g} nats a token",
    "a definition of causality; the order of sums moves a mean loss by less than 1e-4",
    "two passes over a few rows a probe",
    Severity.CRITICAL,
    check,
    frozenset({"document_leak", "label_offset", "plateau"}),
)
