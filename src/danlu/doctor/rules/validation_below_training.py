"""Held-out data is easier than training data: often because it is in the training data."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import MEDIAN_ERROR, SIGMA, Series

POINTS = 5
BELOW = 0.05
FAR = 0.1
"""Held-out documents that are few differ by some percent from the training data by chance."""
SIGMAS = 6.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    validation = evidence.need(names.VALIDATION, POINTS).finite
    name = names.EVALUATED if evidence.get(names.EVALUATED, POINTS) is not None else names.LOSS
    training = evidence.need(name, POINTS).finite
    gaps = relative_gaps(validation, training)
    late = gaps[len(gaps) // 2 :]
    if len(late) < 3:
        raise NotEnoughData(f"fewer than 3 validations lie beside {name} in the second half of the run")
    gap = float(np.median(late))
    error = MEDIAN_ERROR * SIGMA * float(np.median(np.abs(late - gap))) / math.sqrt(len(late))
    if gap > -BELOW or -gap < SIGMAS * error:
        return None
    comparable = evidence.own and -gap >= FAR
    return Finding(
        "validation_below_training",
        Severity.WARNING if comparable else Severity.INFO,
        0.8 if comparable else 0.4,
        Text("the validation loss lies below the training loss", "验证损失低于训练损失"),
        (
            Text(
                f"{names.VALIDATION} is {-gap:.1%} below {name} in the median of the last {len(late)} validations "
                f"(standard error {error:.1%})",
                f"最近 {len(late)} 次验证中，{names.VALIDATION} 的中位数比 {name} 低 {-gap:.1%}（标准误 {error:.1%}）",
            ),
        ),
        Text(
            "look for documents in both splits, exact and nearly equal, and compare length and source of the two",
            "查找同时出现在两个划分中的文档（完全相同或近似相同），并比较两者的长度和来源",
        ),
        {},
        (
            Text(
                "dropout or label smoothing in the step loss: an evaluation on training data would tell",
                "训练步损失含 dropout 或标签平滑：在训练数据上评估即可分辨",
            ),
            Text(
                "an easier source held out: its share would differ between the splits", "留出的来源更容易：两个划分中的占比会不同"
            ),
        ),
        int(validation.steps[len(gaps) // 2]),
        Chart(names.VALIDATION, validation),
    )


def relative_gaps(validation: Series, training: Series) -> np.ndarray:
    """(validation - training) / training at each validation, training being its median over the steps since the one before."""
    gaps = []
    before = -1.0
    for step, value in zip(validation.steps, validation.values, strict=True):
        beside = training.between(max(before, step - 0.1 * max(validation.span, 1)), step).values
        before = float(step)
        if len(beside) and np.median(beside) > 0:
            gaps.append(value / float(np.median(beside)) - 1)
    return np.array(gaps)


RULE = Rule(
    "validation_below_training",
    Text("a validation loss below the training loss", "验证损失低于训练损失"),
    (names.VALIDATION, f"{names.EVALUATED} | {names.LOSS}"),
    f"{BELOW:.0%} below in the median of the run's second half, at {SIGMAS:g} standard errors; a warning from {FAR:.0%} on",
    "held-out data of the same distribution cannot be easier; 5 % allows for the age of a step loss; a log from "
    "elsewhere may hold out another distribution, so there it is information only",
    "one median an evaluation",
    Severity.WARNING,
    check,
)
