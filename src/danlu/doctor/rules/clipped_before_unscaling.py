"""The gradient norm moves with the loss scale: it is taken, and clipped, before unscaling."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

POINTS = 10
LEAST = 100.0
"""Times the clipping threshold: far beyond what gradients of healthy runs are."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    scale, norm = evidence.need(names.SCALE, POINTS).finite, evidence.need(names.GRADIENT, POINTS).finite
    steps, at, beside = np.intersect1d(scale.steps, norm.steps, return_indices=True)
    if len(steps) < POINTS:
        raise names.NotEnoughData(f"{names.SCALE} and {names.GRADIENT} share fewer than {POINTS} steps")
    scales, norms = scale.values[at], norm.values[beside]
    clipping = evidence.number("train.optimizer.gradient_clipping") or 1.0
    beyond = norms > LEAST * clipping
    if beyond.mean() < 0.9:
        return None
    back = norms / scales
    if np.median(back) > LEAST * clipping:
        return None
    return Finding(
        "clipped_before_unscaling",
        Severity.CRITICAL,
        0.9,
        Text("gradients are clipped before the loss scale is taken out", "在去除损失缩放之前裁剪了梯度"),
        (
            Text(
                f"the gradient norm is {np.median(norms):.3g} in the median, {np.median(back):.3g} once divided by the loss "
                f"scale {np.median(scales):.3g}; clipping at {clipping:g} then leaves nothing of it",
                f"梯度范数中位数为 {np.median(norms):.3g}，除以损失缩放 {np.median(scales):.3g} 后为 {np.median(back):.3g}；按 "
                f"{clipping:g} 裁剪几乎不剩",
            ),
        ),
        Text("unscale the gradients first, then take the norm and clip", "先还原梯度，再计算范数并裁剪"),
        {},
        (),
        int(steps[0]),
        Chart(names.GRADIENT, norm),
    )


RULE = Rule(
    "clipped_before_unscaling",
    Text("gradients that are clipped before unscaling", "还原缩放之前裁剪梯度"),
    (names.SCALE, names.GRADIENT),
    f"a norm over {LEAST:g} times the clipping threshold at 90% of the steps, and not so once divided by the scale",
    "gradients of public healthy runs stay within two decades of the usual threshold of 1",
    "two medians",
    Severity.CRITICAL,
    check,
    frozenset({"learning_rate_too_low", "slow_descent", "plateau", "not_learning", "exploding_gradients", "spike"}),
)
