"""The fp16 loss scale halves again and again: steps overflow, are skipped, and the model does not move."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import runs

POINTS = 4
HALVINGS = 4
GROWTH_INTERVAL = 100
"""Steps in which more than two halvings are too many; the usual scaler doubles after 1000 or 2000 good ones."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(names.SCALE, POINTS).finite
    logs = np.log2(np.maximum(one.values, 1e-30))
    # From each point: halvings down to the lowest within the interval.
    stop = np.searchsorted(one.steps, one.steps + GROWTH_INTERVAL, side="right")
    halved = np.array([logs[at] - logs[at : stop[at]].min() for at in range(len(logs))])
    started = np.flatnonzero(np.diff(logs) >= 0)
    if one.steps[0] <= 1:  # the first falls are the search for a scale that fits
        halved[: int(started[0]) + 1 if len(started) else len(halved)] = 0
    bad = halved >= HALVINGS
    if not bad.any():
        return None
    start = runs(bad)[-1][0]
    step, lowest = int(one.steps[start]), float(one.values[start:].min())
    lasts = logs[-1] <= logs[start] - HALVINGS + 1
    return Finding(
        "loss_scale_collapse",
        Severity.CRITICAL if lasts else Severity.INFO,
        0.9,
        Text(f"the fp16 loss scale collapsed at step {step}", f"fp16 损失缩放在第 {step} 步崩溃"),
        (
            Text(
                f"{names.SCALE} fell from {one.values[start]:.6g} to {lowest:.6g} ({halved[start]:.0f} halvings "
                f"within {GROWTH_INTERVAL} steps)" + ("" if lasts else " and came back"),
                f"{names.SCALE} 从 {one.values[start]:.6g} 降到 {lowest:.6g}（{GROWTH_INTERVAL} 步内减半 {halved[start]:.0f} 次）"
                + ("" if lasts else "，之后恢复"),
            ),
        ),
        Text(
            "train in bf16; where there is none, go back to a checkpoint before that step and lower the learning rate",
            "用 bf16 训练；若不支持，回到该步之前的检查点并降低学习率",
        ),
        {"train.precision": "bf16"},
        (Text("the search for the first scale: it ends within the first steps", "寻找初始缩放：在最初几步内结束"),),
        step,
        Chart(names.SCALE, one),
    )


RULE = Rule(
    "loss_scale_collapse",
    Text("the fp16 loss scale halves again and again", "fp16 损失缩放反复减半"),
    (names.SCALE,),
    f"{HALVINGS} halvings within {GROWTH_INTERVAL} steps after the first scale was found",
    "dynamic loss scaling halves once an overflow and doubles after 1000 to 2000 good steps, so that one or two are normal",
    "one pass",
    Severity.CRITICAL,
    check,
    frozenset({"nonfinite", "spike"}),
)
