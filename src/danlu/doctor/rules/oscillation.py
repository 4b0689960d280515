"""The loss swings instead of falling: again and again it is far above what it had already reached."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import MEDIAN_ERROR, SIGMA, Series, runs

EVALUATIONS = 8
STEP_POINTS = 100
BUCKETS = 50
SWING = {names.VALIDATION: 0.15, names.LOSS: 0.25}
"""Above the best so far. A step loss also swings with its batches."""
SWINGS = 3
SHARE = 0.3
LEAST_SHARE = 0.05
SIGMAS = 6.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    validation, steps = evidence.get(names.VALIDATION, EVALUATIONS), evidence.get(names.LOSS, STEP_POINTS)
    if validation is None and steps is None:
        raise NotEnoughData(f"{names.VALIDATION} has fewer than {EVALUATIONS} points, {names.LOSS} fewer than {STEP_POINTS}")
    for name, one in ((names.VALIDATION, validation), (names.LOSS, steps)):
        if one is None or (swings := swinging(*levels(one, name), SWING[name])) is None:
            continue
        count, share, first = swings
        return Finding(
            "oscillation",
            Severity.WARNING,
            0.85,
            Text(f"{name} swings instead of falling", f"{name} 反复波动而不下降"),
            (
                Text(
                    f"{name} rose more than {SWING[name]:.0%} above its best {count} times and was there for {share:.0%} "
                    f"of its points, first at step {first}",
                    f"{name} 有 {count} 次比最好值高出 {SWING[name]:.0%} 以上，共占 {share:.0%} 的点，首次在第 {first} 步",
                ),
            ),
            Text(
                "halve the learning rate or double the batch; check that the data is shuffled",
                "把学习率减半或把批量加倍；检查数据是否打乱",
            ),
            evidence.scaled(names.RATE_SETTING, 1 / 2),
            (
                Text("noise of small batches: levels are medians of many points", "小批量的噪声：这里用的是许多点的中位数"),
                Text("over-fitting: it would rise and not return", "过拟合：会上升而不返回"),
            ),
            first,
            Chart(name, validation if name == names.VALIDATION and validation is not None else one),
        )
    return None


def levels(one: Series, name: str) -> tuple[Series, float]:
    """(what is judged, the noise of one of its values): evaluations as they are, step losses as medians of BUCKETS buckets."""
    finite = one.finite
    if name == names.VALIDATION:
        return finite, 0.0
    edges = np.linspace(0, len(finite), BUCKETS + 1).astype(np.int64)
    parts = [finite.values[start:stop] for start, stop in pairwise(edges)]
    spread = [SIGMA * float(np.median(np.abs(part - np.median(part)))) / math.sqrt(len(part)) for part in parts]
    medians = np.array([float(np.median(part)) for part in parts])
    return Series(finite.steps[edges[1:] - 1], medians), MEDIAN_ERROR * float(np.median(spread))


def swinging(one: Series, noise: float, swing: float) -> tuple[int, float, int] | None:
    """(swings, share of points above, step of the first), or None. The level is set by what was reached before."""
    values = one.values
    if (values <= 0).any():
        return None
    best = np.minimum.accumulate(values)
    rise = values - best - SIGMAS * noise
    above = rise > swing * best
    returns = runs(above)
    if len(returns) < SWINGS and (above.mean() < SHARE or is_rise(values)):
        return None
    if above.mean() < LEAST_SHARE or best[-1] == values[0]:
        return None
    return len(returns), float(above.mean()), int(one.steps[int(np.argmax(above))])


def is_rise(values: np.ndarray) -> bool:
    """Whether the end lies about as high as anything since the best: a rise, not a swing."""
    since = values[int(np.argmin(values)) :]
    return bool(len(since) >= 3 and np.median(since[-3:]) > 0.5 * (since.max() + since.min()))


RULE = Rule(
    "oscillation",
    Text("the loss swings up and down instead of falling", "损失上下波动而不下降"),
    (f"{names.VALIDATION} | {names.LOSS}",),
    f"{SWINGS} separate swings of {SWING[names.VALIDATION]:.0%} ({SWING[names.LOSS]:.0%} in the step loss) above "
    f"the best so far, or {SHARE:.0%} of the points so far above it",
    "a definition of harm; healthy validation curves of the public logs are that far above their best once at most",
    "one pass over evaluations or 50 medians",
    Severity.WARNING,
    check,
)
