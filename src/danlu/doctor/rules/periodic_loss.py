"""The loss repeats itself: the data comes in an order, and not shuffled."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

POINTS = 120
PERIODS = 3
SHORTEST = 8
CORRELATION = 0.5


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(names.LOSS, POINTS).finite
    interval = int(np.median(np.diff(one.steps)))
    even = one.between(one.steps[len(one) // 4], np.inf)  # without the first descent
    if len(even) < POINTS // 2 or (np.diff(even.steps) != interval).mean() > 0.05:
        raise NotEnoughData(f"{names.LOSS} is not logged at even steps")
    lag, correlation = period(even)
    if correlation < CORRELATION:
        return None
    steps = lag * interval
    return Finding(
        "periodic_loss",
        Severity.WARNING,
        min(0.5 + correlation / 2, 0.95),
        Text(f"the loss repeats itself every {steps} steps", f"损失每 {steps} 步重复一次"),
        (
            Text(
                f"the loss about its trend correlates by {correlation:.2f} with itself {steps} steps before, over "
                f"{len(even) // lag} periods",
                f"去除趋势后的损失与 {steps} 步之前的自身相关系数为 {correlation:.2f}，共 {len(even) // lag} 个周期",
            ),
        ),
        Text(
            "shuffle documents over all shards, and with another seed every epoch",
            "在所有分片之间打乱文档，并且每轮使用不同的种子",
        ),
        {},
        (Text("a learning rate that cycles: the period would be its own", "学习率周期变化：周期应与其一致"),),
        int(even.steps[0]) + 2 * steps,
        Chart(names.LOSS, one),
    )


def period(one: Series) -> tuple[int, float]:
    """(lag in points, autocorrelation there) of the strongest repetition that is also there at twice the lag.

    The trend is a straight line through overlapping blocks; a lag has to stand above the correlation midway to the next, or a
    slow drift would count.
    """
    values = one.values
    count = len(values)
    width = max(count // (2 * PERIODS) | 1, 9)
    padded = np.pad(values, width // 2, mode="edge")
    sums = np.cumsum(np.concatenate(([0.0], padded)))
    rest = values - (sums[width:] - sums[:-width])[:count] / width
    low, high = np.percentile(rest, [1, 99])
    rest = np.clip(rest, low, high)  # single jumps
    rest -= rest.mean()
    if not rest.any():
        return 1, 0.0
    spectrum = np.abs(np.fft.rfft(rest, 2 * count)) ** 2
    correlation = np.fft.irfft(spectrum)[:count]
    correlation = correlation / correlation[0] * count / (count - np.arange(count))
    best, strength = 1, 0.0
    for lag in range(SHORTEST, count // PERIODS):
        here, twice, between = correlation[lag], correlation[2 * lag], correlation[lag + lag // 2]
        if here > strength and twice > 0.7 * here and between < 0.5 * here and here >= correlation[lag - 1 : lag + 2].max():
            best, strength = lag, float(here)
    return best, strength


RULE = Rule(
    "periodic_loss",
    Text("a loss that repeats itself, as with data in a fixed order", "损失周期性重复，数据顺序固定"),
    (names.LOSS,),
    f"autocorrelation {CORRELATION:g} about the trend, at the lag and at twice it, over {PERIODS} periods",
    "a quarter of the variance is explained by the position in the period; the sampling error of 120 points is 0.09",
    "one Fourier transform",
    Severity.WARNING,
    check,
)
