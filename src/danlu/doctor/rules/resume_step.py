"""The loss steps up where the run was resumed."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import MEDIAN_ERROR

POINTS = 20
LEAST = 0.01
SIGMAS = 6.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    if not evidence.resumes:
        raise NotEnoughData("the run was not resumed, or the log does not say where")
    one = evidence.need(names.LOSS, 2 * POINTS).finite
    for step in evidence.resumes:
        before, after = one.between(0, step - 1).values[-POINTS:], one.between(step, np.inf).values[:POINTS]
        if len(before) < POINTS // 2 or len(after) < POINTS // 2:
            continue
        was, now = float(np.median(before)), float(np.median(after))
        error = MEDIAN_ERROR * one.noise * math.sqrt(1 / len(before) + 1 / len(after))
        if now - was <= max(SIGMAS * error, LEAST * abs(was)):
            continue
        return Finding(
            "resume_step",
            Severity.WARNING,
            0.85,
            Text(f"the loss stepped up where the run was resumed, at step {step}", f"第 {step} 步恢复训练后损失跳升"),
            (
                Text(
                    f"{names.LOSS} was {was:.4g} in the {len(before)} points before and {now:.4g} in the "
                    f"{len(after)} after (standard error {error:.2g})",
                    f"{names.LOSS} 恢复前 {len(before)} 个点为 {was:.4g}，恢复后 {len(after)} 个点为 {now:.4g}（标准"
                    f"误 {error:.2g}）",
                ),
            ),
            Text(
                "check that optimizer state, learning-rate step and data position were all restored",
                "检查优化器状态、学习率步数和数据位置是否都已恢复",
            ),
            {},
            (
                Text(
                    "data that restarts: the loss first falls, and steps up at the first unseen batch",
                    "数据从头开始：损失先降，在首个未见批次处跳升",
                ),
                Text("a fresh optimizer: it is back within some hundred steps", "优化器状态丢失：几百步内恢复"),
            ),
            step,
            Chart(names.LOSS, one.between(step - 5 * POINTS, step + 5 * POINTS)),
        )
    return None


RULE = Rule(
    "resume_step",
    Text("a loss that is higher after a resume", "恢复训练后损失升高"),
    (names.LOSS, "resumes"),
    f"median of {POINTS} points up by {LEAST:.0%} and {SIGMAS:g} standard errors",
    "the noise is the curve's own; a run that goes on bit for bit shows no step at all",
    "two medians a resume",
    Severity.WARNING,
    check,
    frozenset({"spike"}),
)
