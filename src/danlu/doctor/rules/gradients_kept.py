"""Gradients are not freed between steps."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "optimizer/kept_gradients"


def check(evidence: Evidence, found: Found) -> Finding | None:
    above = evidence.need(SIGNAL).first_above(0)
    if above is None:
        return None
    step, kept = above
    return Finding(
        "gradients_kept",
        Severity.CRITICAL,
        0.97,
        Text("gradients of earlier steps are added to later ones", "先前步的梯度累加到了后续步"),
        (
            Text(
                f"after step {step}, {kept:.0f} parameters still had a gradient",
                f"第 {step} 步之后仍有 {kept:.0f} 个参数保留着梯度",
            ),
        ),
        Text("zero the gradients after every step", "每步之后清零梯度"),
        {},
        (),
        step,
    )


RULE = Rule(
    "gradients_kept",
    Text("gradients that are not zeroed between steps", "步与步之间没有清零的梯度"),
    (SIGNAL,),
    "any parameter after any step looked at",
    "a definition",
    "a look at pointers on the host a look",
    Severity.CRITICAL,
    check,
    frozenset(
        {
            "exploding_gradients",
            "learning_rate_too_high",
            "divergence",
            "oscillation",
            "spike",
            "not_learning",
            "plateau",
            "slow_descent",
            "vanishing_gradients",
        }
    ),
)
