"""The loss rises again, far and for good: training undoes what it learned."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

POINTS = {names.LOSS: 30, names.EVALUATED: 4, names.VALIDATION: 4}
UNDONE = 0.25
"""Share of the descent (in the logarithm of the loss) that is lost."""
LEAST = 0.05
"""And in the loss itself, without which a loss near zero would seem to rise when it moves in its last digits."""
SIGMAS = 6.0
FEW = 20
"""Points from which on a curve has a noise of its own to be held against."""
FAR = 100.0
"""A loss this many times its first value needs no statistics."""
NEVER_FELL = 0.02
WINDOWS_APART = 16
"""A level is taken for every sixteenth of its width: for every point of a run of a million it would take 150 GB."""
ABOVE = 0.1
"""Where the loss never fell, it has to end this far above its first value."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    curves = {
        name: one for name, least in POINTS.items() if (one := evidence.current(name, 2)) and (far(one) or len(one) >= least)
    }
    if not curves:
        raise NotEnoughData("no loss curve reaches the end of the run with enough points")
    risen = {name: rise for name, one in curves.items() if (rise := undone(one.finite)) is not None}
    evaluations = {name for name in (names.EVALUATED, names.VALIDATION) if name in curves}
    if len(evaluations) == 2 and not evaluations <= risen.keys():
        risen = {name: rise for name, rise in risen.items() if name == names.LOSS}  # measured alike: a ruined model shows in both
    if not risen or (set(risen) == {names.VALIDATION} and len(curves) > 1):
        return None  # a training loss that holds its ground makes it over-fitting
    if not any(stands_out(curves[name].finite, rise) for name, rise in risen.items()) and len(risen) < 2:
        return None
    name = max(risen, key=lambda one: risen[one][0])
    share, best, best_step, end = risen[name]
    one = curves[name].finite
    since = int(one.steps[-1] - best_step)
    learned = Text(f"{share:.0%} of the descent is undone", f"已下降的部分有 {share:.0%} 被抵消")
    if not math.isfinite(share):
        learned = Text("above where it began", "高于起点")
    others = [other for other in risen if other != name]
    why = [
        Text(
            f"{name} was {best:.4g} at step {best_step} and is {end:.4g} at the end, {since} steps later: {learned.en}",
            f"{name} 在第 {best_step} 步是 {best:.4g}，{since} 步之后的末尾是 {end:.4g}：{learned.zh}",
        )
    ]
    if others:
        why.append(Text(f"so does {', '.join(others)}", f"{'、'.join(others)} 也是如此"))
    return Finding(
        "divergence",
        Severity.CRITICAL,
        0.95 if others else 0.6 if name == names.VALIDATION else 0.8,
        Text(f"the loss diverged after step {best_step}", f"损失在第 {best_step} 步之后发散"),
        tuple(why),
        Text(
            f"go back to a checkpoint before step {best_step} and train on with a lower learning rate",
            f"回到第 {best_step} 步之前的检查点，用更低的学习率继续训练",
        ),
        evidence.scaled(names.RATE_SETTING, 1 / 3),
        (
            Text("over-fitting: the training loss would fall", "过拟合：训练损失应当下降"),
            Text("a spike: it would come back", "尖峰：会自行恢复"),
        ),
        best_step,
        Chart(name, curves[name]),
    )


def far(one: Series) -> bool:
    """Whether the last value is beyond anything that noise or a spike can be."""
    return bool(one.finite.values[-1] > FAR * one.finite.values[0] > 0)


def undone(one: Series) -> tuple[float, float, int, float] | None:
    """(share of the descent undone, best level, its step, level at the end), or None where the curve holds its ground.

    Levels are medians of up to a fiftieth of the points, three at least where there are as many as 20: no single batch decides.
    """
    values = one.values
    width = max(3, len(values) // 50) if len(values) >= 20 else 1
    if width > 1:
        stride = max(1, width // WINDOWS_APART)
        windows = np.lib.stride_tricks.sliding_window_view(values, width)[::stride]
        level, steps = np.median(windows, axis=1), one.steps[width - 1 :: stride]
        end = float(np.min(values[-3:])) if width == 3 else float(np.median(values[-width:]))
    else:
        level, steps, end = values, one.steps, float(values[-1])
    at = int(np.argmin(level))
    first, best = float(values[0]), float(level[at])
    descent = first - best
    if descent <= NEVER_FELL * abs(first):
        return (math.inf, first, int(one.steps[0]), end) if end > first + ABOVE * abs(first) else None
    if end <= best:
        return None
    linear = (end - best) / descent
    share = math.log(end / best) / math.log(first / best) if best > 0 else linear
    return (share, best, int(steps[at]), end) if share >= UNDONE and linear >= LEAST else None


def stands_out(one: Series, rise: tuple[float, float, int, float]) -> bool:
    """Whether the rise stands out of the noise; a curve that few points make can only be confirmed by another one."""
    _, best, _, end = rise
    if far(one):
        return True
    if len(one) < FEW:
        before_last = float(one.values[-2])
        return before_last - best > 0.5 * (end - best)
    return end - best > SIGMAS * one.noise


RULE = Rule(
    "divergence",
    Text("the loss rises far above its best level and stays there", "损失远高于最好水平且不再下降"),
    (f"{names.LOSS} | {names.EVALUATED} | {names.VALIDATION}",),
    f"{UNDONE:.0%} of the descent in log loss and {LEAST:.0%} in loss undone, at {SIGMAS:g} standard deviations of "
    "the noise or in two curves",
    "a definition of harm; the noise is the median absolute first difference of the curve itself",
    "one sort of the curve's levels",
    Severity.CRITICAL,
    check,
    frozenset({"forgetting", "spike", "oscillation"}),
)
