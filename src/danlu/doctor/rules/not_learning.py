"""The loss stays where it began."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

STEPS = 200
"""Before this a warm-up may still hold the learning rate near zero; with a known warm-up, twice its length counts too."""
POINTS = {names.LOSS: 50, names.EVALUATED: 8, names.VALIDATION: 8}
SHARE = 0.5
FALL = 0.01
SIGMAS = 3.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    curves = {name: one for name, least in POINTS.items() if (one := evidence.current(name, least)) is not None}
    if not curves:
        raise NotEnoughData("no loss curve reaches the end of the run with enough points")
    least = max(STEPS, 2 * (evidence.warmup_end() or 0))
    long = {
        name: one
        for name, one in curves.items()
        if one.finite.span >= least and one.finite.steps[0] <= 0.01 * one.finite.steps[-1]
    }
    if not long:
        raise NotEnoughData(f"no loss from the start of the run over {least} steps")
    for name, one in long.items():
        finite = one.finite
        start, noise = float(finite.values[0]), finite.noise
        above = finite.share_above_first(SIGMAS)
        early, late = tenths(finite)
        error = noise / math.sqrt(max(len(finite) // 10, 1))
        flat = (
            early - late < FALL * abs(start)
            and start - late < FALL * abs(start) + SIGMAS * noise
            and SIGMAS * error < FALL * abs(start)
        )
        if not flat and above < SHARE:
            continue
        stays = late >= start - FALL * abs(start)
        return Finding(
            "not_learning",
            Severity.CRITICAL if stays else Severity.WARNING,
            0.95 if stays else 0.85,
            Text("the loss stays where it began", "损失停在起点"),
            (
                Text(
                    f"{name} began at {start:.4g}, was above that for {above:.0%} of the steps, and is {late:.4g} "
                    "in the last tenth",
                    f"{name} 起点为 {start:.4g}，{above:.0%} 的步数里高于起点，最后十分之一是 {late:.4g}",
                ),
            ),
            Text(
                "try a tenth and ten times the learning rate in two short runs; then look at the labels and at frozen parameters",
                "用十分之一和十倍的学习率各短跑一次；再检查标签和被冻结的参数",
            ),
            {},
            (
                Text(
                    "a learning rate near zero: the gradient norm would stay at its first value",
                    "学习率接近零：梯度范数会停在初值",
                ),
                Text("wrong labels: the loss would settle at the entropy of the labels", "标签错误：损失会停在标签的熵"),
            ),
            int(finite.steps[0]),
            Chart(name, one),
        )
    return None


def tenths(one: Series) -> tuple[float, float]:
    """Medians of the first and the last tenth of the points."""
    count = max(len(one) // 10, 1)
    return float(np.median(one.values[:count])), float(np.median(one.values[-count:]))


RULE = Rule(
    "not_learning",
    Text("the loss does not fall below its first value", "损失没有降到初值以下"),
    (f"{names.LOSS} | {names.EVALUATED} | {names.VALIDATION}",),
    f"above its first value for {SHARE:.0%} of the steps, or a fall below {FALL:.0%} where the noise would show "
    f"one; after {STEPS} steps and two warm-ups",
    "a definition; the noise is the curve's own",
    "one pass over the levels",
    Severity.CRITICAL,
    check,
    frozenset({"plateau", "slow_descent"}),
)
