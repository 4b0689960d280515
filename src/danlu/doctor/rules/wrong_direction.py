"""Every step raises the loss of the very batch that it was made from."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

BEFORE, AFTER = "probe/batch_loss", "probe/batch_loss_after"
TIMES = 2
RISE = 1e-5


def check(evidence: Evidence, found: Found) -> Finding | None:
    before, after = evidence.need(BEFORE).finite, evidence.need(AFTER).finite
    steps, at, beside = np.intersect1d(before.steps, after.steps, return_indices=True)
    if len(steps) < TIMES:
        raise NotEnoughData(f"{BEFORE} and {AFTER} of {TIMES} steps are needed")
    was, now = before.values[at], after.values[beside]
    if not (now - was > RISE * np.abs(was)).all():
        return None
    told = ", ".join(f"{one:.4g} → {other:.4g} ({step})" for one, other, step in zip(was[:3], now[:3], steps[:3], strict=True))
    return Finding(
        "wrong_direction",
        Severity.CRITICAL,
        0.9,
        Text("steps go up the gradient: each raises the loss of its own batch", "更新沿梯度上升：每一步都使自身批次的损失升高"),
        (
            Text(
                f"loss of a batch before and after its own step: {told}; a step that follows the gradient lowers it",
                f"同一批次在其自身更新前后的损失：{told}；沿梯度的更新应使其下降",
            ),
        ),
        Text("check the sign of the loss and of the update", "检查损失和更新的符号"),
        {},
        (
            Text(
                "a learning rate that is too high: the first steps of a warm-up would be right",
                "学习率过高：预热的最初几步会是正确的",
            ),
        ),
        int(steps[0]),
    )


RULE = Rule(
    "wrong_direction",
    Text("updates of the wrong sign", "方向错误的更新"),
    (BEFORE, AFTER),
    f"a rise by {RISE:g} of it at every probe, {TIMES} or more",
    "a definition: to first order a step along the gradient lowers the loss that it was taken from",
    "two passes over a whole batch a probe",
    Severity.CRITICAL,
    check,
    frozenset({"divergence", "exploding_gradients", "learning_rate_too_high", "not_learning", "oscillation", "spike"}),
)
