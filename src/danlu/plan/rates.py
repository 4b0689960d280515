"""The best learning rate of a sweep, and of a size that was not run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SLOPE, SLOPE_SPREAD = -1 / 3, 0.25
"""d log(best rate) / d log(parameters) before any run is looked at, and its standard deviation: 0 is a rate that needs no change,
-1/3 one that falls as 1 / width where all dimensions grow together, -0.71 the steepest published fit (arXiv:2503.04715)."""
DEVIATIONS = 1.645
"""Of a normal distribution, to either side of 90 % of it."""


class Swept(NamedTuple):
    """One run of a sweep. A loss that is not finite is that of a run that diverged."""

    rate: float
    loss: float


class Best(NamedTuple):
    """The best rate, and the rates that surely lie on either side of it."""

    rate: float
    low: float
    high: float
    inside: bool
    """Whether the sweep has worse rates on both sides; else the best may lie beyond."""


def best_rate(sweep: Sequence[Swept]) -> Best:
    """The vertex of the parabola in log(rate) through the best rate and its neighbours, which are the bounds.

    Several runs at one rate count as one, with the smallest loss. At an edge of the sweep, or beside a run that diverged, no
    parabola is drawn: the best rate itself stands, and one step of the sweep, or a factor of 2, is the bound on the open side.
    """
    losses: dict[float, float] = {}
    for rate, loss in sorted(sweep):
        losses[rate] = min(losses.get(rate, math.inf), loss if math.isfinite(loss) else math.inf)
    rates = list(losses)
    at = min(range(len(rates)), key=lambda index: losses[rates[index]])
    best = rates[at]
    below = rates[at - 1] if at > 0 else None
    above = rates[at + 1] if at + 1 < len(rates) else None
    step = best / below if below else above / best if above else 2.0
    bounds = (below or best / step, above or best * step)
    if below is None or above is None:
        return Best(best, *bounds, inside=False)
    if not math.isfinite(losses[above]) or not math.isfinite(losses[below]):
        return Best(best, *bounds, inside=True)
    x = [math.log(rate / best) for rate in (below, above)]
    y = [losses[rate] - losses[best] for rate in (below, above)]
    curvature = y[0] / x[0] - y[1] / x[1]
    shift = (y[0] * x[1] / x[0] - y[1] * x[0] / x[1]) / (2 * curvature) if curvature else 0.0
    return Best(best * math.exp(shift), *bounds, inside=True)


class AtSize(NamedTuple):
    """A size, and the best rate that was found for it."""

    parameters: float
    best: Best


def carried(found: Sequence[AtSize], parameters: float, transfers: bool) -> Best:
    """The best rate for a size that was not run, with bounds of 90 %.

    What transfers, as with µP, is the mean over the sizes. What does not is a line in log(rate) over log(parameters): a Bayesian
    regression, whose slope is `SLOPE` until the sizes say otherwise. Bounds of a sweep are taken as those of 90 % too.
    """
    spread = [max(math.log(each.best.high / each.best.low) / (2 * DEVIATIONS), 1e-3) for each in found]
    rates = [math.log(each.best.rate) for each in found]
    sizes = [0.0 if transfers else math.log(each.parameters / parameters) for each in found]
    inside = all(each.best.inside for each in found)
    # The posterior of (rate at the target, slope), of two normal distributions: a 2 x 2 system. The rate has no prior.
    weights = [1 / deviation**2 for deviation in spread]
    prior = 1 / SLOPE_SPREAD**2
    a = sum(weights)
    b = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    d = sum(weight * size**2 for weight, size in zip(weights, sizes, strict=True)) + prior
    right = sum(weight * rate for weight, rate in zip(weights, rates, strict=True))
    low_right = sum(w * size * rate for w, size, rate in zip(weights, sizes, rates, strict=True)) + prior * SLOPE
    determinant = a * d - b**2
    middle, deviation = (d * right - b * low_right) / determinant, math.sqrt(d / determinant)
    reach = math.exp(DEVIATIONS * deviation)
    return Best(math.exp(middle), math.exp(middle) / reach, math.exp(middle) * reach, inside)
