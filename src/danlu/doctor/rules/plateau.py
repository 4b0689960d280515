"""The loss stopped falling early: over four octaves of steps it fell by less than a quarter of the slowest power law."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import MEDIAN_ERROR, Series

POINTS = {names.LOSS: 60, names.EVALUATED: 20}
OCTAVES = {names.LOSS: 4, names.EVALUATED: 3}
"""From the octave that ends so many octaves before the end to the last one; evaluations begin too late for more."""
STEPS = 500
EXPONENT = 0.05
"""The smallest exponent of loss against compute in Kaplan et al., arXiv:2001.08361; against steps it is larger."""
SHARE = 0.25
SIGMAS = 3.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    curves = {name: one.finite for name, least in POINTS.items() if (one := evidence.current(name, least)) is not None}
    if not curves:
        raise NotEnoughData(f"neither {names.LOSS} nor {names.EVALUATED} has enough points to the end of the run")
    name, one = next(iter(curves.items()))
    last, octaves = int(one.steps[-1]), OCTAVES[name]
    if last < STEPS or one.steps[0] > last / 2 ** (octaves + 1) or (one.values <= 0).any():
        raise NotEnoughData(f"{name} does not reach {octaves + 1} octaves back from step {STEPS} or later, or is not positive")
    then_step = last // 2**octaves
    now, then = level(one, last / 2, last), level(one, then_step / 2, then_step)
    if now is None or then is None:
        raise NotEnoughData(f"{name} is too sparse in its first octaves")
    fall, error = math.log(then[0] / now[0]), math.hypot(now[1] / now[0], then[1] / then[0])
    expected = SHARE * EXPONENT * octaves * math.log(2)
    if fall + SIGMAS * error >= expected:
        return None
    if validation_falls(evidence, then_step, expected):
        return None
    still = fall + SIGMAS * error >= expected * SHARE
    return Finding(
        "plateau",
        Severity.INFO if still else Severity.WARNING,
        0.5 if still else 0.75,
        Text(f"the loss hardly falls since step {then_step}", f"损失自第 {then_step} 步起几乎不再下降"),
        (
            Text(
                f"{name} was {then[0]:.4g} about step {then_step} and is {now[0]:.4g} in the last half: "
                f"{math.expm1(-fall):+.2%} "
                f"(standard error {error:.2%}), where even a power law with exponent {EXPONENT} falls by "
                f"{1 - math.exp(-expected / SHARE):.0%}",
                f"{name} 在第 {then_step} 步附近是 {then[0]:.4g}，后半程是 {now[0]:.4g}：{math.expm1(-fall):+.2%}"
                f"（标准误 {error:.2%}），而指数仅 {EXPONENT} 的幂律也应下降 {1 - math.exp(-expected / SHARE):.0%}",
            ),
        ),
        Text(
            "try a lower and a higher learning rate for a short run; check labels, frozen parameters and that data "
            "is not repeated",
            "用更低和更高的学习率各短跑一次；检查标签、被冻结的参数，以及数据是否重复",
        ),
        {},
        (
            Text(
                "the entropy of the data is reached: then a larger model does not help either",
                "已达到数据的熵：那么更大的模型也没有帮助",
            ),
            Text("labels shifted twice: all else looks healthy", "标签移位两次：其余一切正常"),
        ),
        then_step,
        Chart(name, one),
    )


def validation_falls(evidence: Evidence, then_step: int, expected: float) -> bool:
    """Whether the validation loss fell as expected since: then the step loss is only noisy, or regularised."""
    one = evidence.current(names.VALIDATION, 6)
    if one is None or (one.finite.values <= 0).any():
        return False
    values = one.finite.between(then_step, math.inf).values
    count = max(len(values) // 4, 1)
    return len(values) >= 4 and math.log(np.median(values[:count]) / np.median(values[-count:])) >= expected


def level(one: Series, first: float, last: float) -> tuple[float, float] | None:
    """(median, its standard error) of the points in between; None for fewer than three."""
    part = one.between(first, last).values
    return (float(np.median(part)), MEDIAN_ERROR * float(np.std(part)) / math.sqrt(len(part))) if len(part) >= 3 else None


RULE = Rule(
    "plateau",
    Text("the loss stops falling early", "损失过早停止下降"),
    (f"{names.LOSS} | {names.EVALUATED}",),
    f"over {OCTAVES[names.LOSS]} octaves of steps ({OCTAVES[names.EVALUATED]} of evaluations) less than {SHARE:.0%} of a power "
    f"law with exponent {EXPONENT}, {SIGMAS:g} standard errors allowed; information only from {SHARE * SHARE:.0%} on",
    "smallest exponent in Kaplan et al., arXiv:2001.08361",
    "two medians",
    Severity.WARNING,
    check,
)
