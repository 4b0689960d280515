"""The gradient norm leaves its range by orders of magnitude, and not for a single batch."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import SIGMA, runs, trailing_median

POINTS = 20
FACTOR = 100.0
SIGMAS = 6.0
IN_A_ROW = 3
SHARE = 0.02
BEHIND = 101


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(names.GRADIENT, POINTS)
    values = np.where(np.isposinf(one.values), 1e38, one.values)  # above any single-precision norm
    good = np.isfinite(values) & (values > 0)
    steps, logs = one.steps[good], np.log(values[good])
    if len(logs) < POINTS:
        return None  # all zero: it was not computed
    usual = trailing_median(logs, BEHIND)
    usual[:5] = np.median(logs[:5])
    noise = SIGMA * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)
    high = logs - usual > max(math.log(FACTOR), SIGMAS * noise)
    stretches = [(start, stop) for start, stop in runs(high) if stop - start >= IN_A_ROW]
    if not stretches and high.mean() < SHARE:
        return None
    first = int(steps[stretches[0][0]]) if stretches else int(steps[np.argmax(high)])
    lasts = bool(high[-max(IN_A_ROW, len(high) // 10) :].any())
    return Finding(
        "exploding_gradients",
        Severity.WARNING if lasts else Severity.INFO,
        0.9,
        Text(f"gradients explode from step {first} on", f"梯度从第 {first} 步起爆炸")
        if lasts
        else Text(f"gradients exploded at step {first} and came back", f"梯度在第 {first} 步爆炸，之后恢复"),
        (
            Text(
                f"{names.GRADIENT} is {FACTOR:g} times its usual level or more at {int(high.sum())} of {len(logs)} points, up to "
                f"{math.exp(float(logs.max())):.3g} against {math.exp(float(np.median(logs))):.3g} in the median",
                f"{names.GRADIENT} 在 {len(logs)} 个点中有 {int(high.sum())} 个达到平时的 {FACTOR:g} 倍以上，最高 "
                f"{math.exp(float(logs.max())):.3g}，中位数 {math.exp(float(np.median(logs))):.3g}",
            ),
        ),
        Text("clip gradients at 1.0, lower the learning rate, lengthen the warm-up", "把梯度裁剪设为 1.0，降低学习率，延长预热"),
        {"train.optimizer.gradient_clipping": 1.0} if evidence.number("train.optimizer.gradient_clipping") == 0 else {},
        (Text("one odd batch: it would not last", "个别异常数据：不会持续"),),
        first,
        Chart(names.GRADIENT, one),
    )


RULE = Rule(
    "exploding_gradients",
    Text("the gradient norm rises by orders of magnitude", "梯度范数升高几个数量级"),
    (names.GRADIENT,),
    f"{FACTOR:g} times its running median and {SIGMAS:g} standard deviations of its logarithm, {IN_A_ROW} points in "
    f"a row or {SHARE:.0%} of all",
    "the 176B run of BigScience rose 4000-fold before its loss moved; healthy logs stay within two decades of "
    "their running median",
    "one running median",
    Severity.WARNING,
    check,
    frozenset({"nonfinite"}),
)
