"""Evaluations swing to the end while the step loss is smooth and far below: what is evaluated is not what is trained."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

POINTS = 12
APART = 1.5
MOVES = 0.25


def check(evidence: Evidence, found: Found) -> Finding | None:
    step, evaluated = evidence.current(names.LOSS, 30), evidence.current(names.EVALUATED, POINTS)
    if step is None or evaluated is None:
        raise NotEnoughData(f"needs {names.LOSS} and {names.EVALUATED} to the end of the run")
    half = evaluated.finite.steps[len(evaluated.finite) // 2]
    late, smooth = evaluated.finite.between(half, np.inf).values, step.finite.level.between(half, np.inf).values
    if not len(smooth) or (late <= 0).any() or (smooth <= 0).any():
        raise NotEnoughData("no positive losses in the second half of the run")
    moves = float(np.median(np.abs(np.diff(np.log(late[-max(len(late) // 2, 3) :])))))
    apart = float(np.median(late) / np.median(smooth))
    spread = float(np.subtract(*np.percentile(np.log(smooth), [90, 10])))
    if moves < MOVES or apart < APART or spread > MOVES:
        return None
    return Finding(
        "evaluation_mismatch",
        Severity.WARNING,
        0.8,
        Text("evaluations do not show the model that is trained", "评估的不是正在训练的模型状态"),
        (
            Text(
                f"on training data the evaluated loss is {apart:.1f} times the step loss and moves by {moves:.0%} "
                "from one evaluation to the next, "
                f"while the step loss stays within {spread:.0%}",
                f"在训练数据上，评估损失是训练步损失的 {apart:.1f} 倍，相邻两次评估相差 {moves:.0%}，而训练步损失的"
                f"变动在 {spread:.0%} 以内",
            ),
        ),
        Text(
            "evaluate one training batch in both modes; look at running statistics of norms, averaged weights and preprocessing",
            "用两种模式评估同一批训练数据；检查归一化层的滑动统计量、平均权重和预处理",
        ),
        {},
        (Text("a learning rate that is too high: the step loss would swing too", "学习率过高：训练步损失也会波动"),),
        int(half),
        Chart(names.EVALUATED, evaluated),
    )


RULE = Rule(
    "evaluation_mismatch",
    Text("evaluations on training data swing while the step loss is smooth", "训练步损失平稳而训练数据上的评估波动"),
    (names.LOSS, names.EVALUATED),
    f"evaluated loss {APART} times the step loss, moving by {MOVES:.0%} between evaluations to the end, step loss "
    f"within {MOVES:.0%}",
    "a definition: both measure the same model on the same data",
    "two percentiles",
    Severity.WARNING,
    check,
    frozenset({"oscillation"}),
)
