"""Gradients vanish while there is still much to learn, or are exactly zero."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

POINTS = 20
FACTOR = 1e-3
ZEROS = 3
LEFT = 0.5


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(names.GRADIENT, POINTS).finite
    values = one.values
    if not (values > 0).any():
        raise NotEnoughData(f"{names.GRADIENT} is zero throughout, as where it is not computed")
    zeros = len(values) - 1 - int(np.flatnonzero(values > 0)[-1])
    positive = one.values[values > 0]
    early, now = float(np.median(positive[: max(len(positive) // 10, 5)])), float(np.median(values[-max(len(values) // 20, 5) :]))
    loss = evidence.get(names.LOSS, POINTS)
    left = None if loss is None else float(np.median(loss.finite.values[-5:]) / loss.finite.values[0])
    if zeros < ZEROS and (now >= FACTOR * early or left is None or not left > LEFT):
        return None
    dead = zeros >= ZEROS
    step = int(one.steps[len(values) - zeros]) if dead else int(one.steps[int(np.argmax(values < FACTOR * early))])
    text = Text(
        f"{names.GRADIENT} is 0 at the last {zeros} points" if dead else f"{names.GRADIENT} fell from {early:.3g} to {now:.3g}",
        f"{names.GRADIENT} 最后 {zeros} 个点为 0" if dead else f"{names.GRADIENT} 从 {early:.3g} 降到 {now:.3g}",
    )
    rest = () if left is None else (Text(f"the loss still is {left:.0%} of its first value", f"损失仍是初值的 {left:.0%}"),)
    return Finding(
        "vanishing_gradients",
        Severity.CRITICAL if dead else Severity.WARNING,
        0.9 if dead else 0.7,
        Text("no gradient reaches the weights" if dead else "gradients vanish", "权重得不到梯度" if dead else "梯度消失"),
        (text, *rest),
        Text(
            "look at the share of supervised tokens and at frozen parameters; then at the initialisation and at "
            "norms in the residual path",
            "检查有监督词元的比例和被冻结的参数；再检查初始化和残差路径上的归一化",
        ),
        {},
        (Text("convergence: the loss would be low", "已收敛：损失应当很低"),),
        step,
        Chart(names.GRADIENT, one),
    )


RULE = Rule(
    "vanishing_gradients",
    Text("gradients that are zero, or tiny while the loss is high", "梯度为零，或损失仍高而梯度极小"),
    (names.GRADIENT,),
    f"exactly zero at {ZEROS} points at the end, or below {FACTOR:g} of the first tenth's median with over "
    f"{LEFT:.0%} of the first loss left",
    "a definition: with so little left of them, the loss cannot be what lowered them",
    "two medians",
    Severity.CRITICAL,
    check,
)
