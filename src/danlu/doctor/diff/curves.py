"""Where one signal of two runs differs at all, and where it parts beyond the noise of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.series import Series, Values

Mask = npt.NDArray[np.bool_]

HASH = "batch/hash"
"""Of a step's tokens; equal where both runs trained on the same batch."""
EXACT = (HASH, names.RATE, names.SCALE)
"""Signals without noise: any difference is one."""
ORDER = (HASH, names.RATE, names.SCALE, names.LOSS, names.GRADIENT, names.EVALUATED, names.VALIDATION)
"""What comes first within a step comes first here: the batch and the settings, then the loss, then its gradient."""
ROUNDING = 1e-9
"""Relative difference from which on two values are not the same."""
SIGMAS = 4.0
LEAST = 16
"""Points below which a curve's noise is not known."""
LEVEL = 1e-6
"""Of the signal's level: noise at least, which is what rounding makes of a smooth curve."""
WINDOW = 16
"""Points that are averaged, of short curves an eighth; a gap has to last for three windows, or to the end."""


class Parting(NamedTuple):
    """One signal of two runs."""

    name: str
    points: int
    """Steps that both have."""
    differs: int | None
    """First step whose values are not the same."""
    parts: int | None
    """First step of a gap that noise does not explain and that lasts, or at which one of them is not finite."""
    noise: float | None
    """Standard deviation of the difference, as both curves scatter; None: it has none, or too few points to tell."""
    values: tuple[float, float]
    """At that step; where there is none, at the last common one."""


def partings(first: Evidence, second: Evidence) -> list[Parting]:
    """Of all signals that both have and that training decides, in the order in which they come about."""
    layers = sorted(set(first.matching("layer/", "/gradient_norm")) & set(second.matching("layer/", "/gradient_norm")))
    wanted = [*ORDER, *(f"layer/{layer}/gradient_norm" for layer in layers)]
    there = first.signals.keys() & second.signals.keys()
    found = (parting(name, first.signals[name], second.signals[name]) for name in wanted if name in there)
    return [one for one in found if one is not None]


def parting(name: str, first: Series, second: Series) -> Parting | None:
    """None where no step is common. NaN and infinity are values: a run that has them has parted from one that has not."""
    steps, at, beside = np.intersect1d(first.steps, second.steps, return_indices=True)
    if not len(steps):
        return None
    a, b = first.values[at], second.values[beside]
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b) > ROUNDING * np.maximum(np.abs(a), np.abs(b))
    broken = ~finite & ~(np.isnan(a) & np.isnan(b)) & (a != b)
    differs = _first(np.where(finite, far, broken))
    end = _first(broken)
    parts, noise = differs, None
    if name not in EXACT:
        clean = Series(steps[finite][:end], a[finite][:end]), Series(steps[finite][:end], b[finite][:end])
        noise = _noise(*clean) if finite.sum() >= LEAST else None
        parts = end if noise is None else _gap(np.where(finite, a - b, 0.0)[:end], noise, end)
    shown = len(steps) - 1 if parts is None else parts
    told = [None if one is None else int(steps[one]) for one in (differs, parts)]
    return Parting(name, len(steps), told[0], told[1], noise, (float(a[shown]), float(b[shown])))


def _first(mask: Mask) -> int | None:
    return int(mask.argmax()) if mask.any() else None


def _noise(first: Series, second: Series) -> float:
    """Standard deviation of the difference of two values by the noise of each curve about its own trend."""
    level = float(np.median(np.abs(first.values))) if len(first) else 0.0
    return max(float(np.hypot(first.noise, second.noise)), LEVEL * level)


def _gap(gap: Values, noise: float, otherwise: int | None) -> int | None:
    """Index of the first point of a lasting gap; `otherwise` where there is none."""
    width = max(1, min(WINDOW, len(gap) // 8))
    if len(gap) < width:
        return otherwise
    mean = np.convolve(gap, np.full(width, 1 / width), "valid")
    beyond = np.sign(mean) * (np.abs(mean) > SIGMAS * noise / np.sqrt(width))
    for at in np.flatnonzero(beyond):
        if (beyond[at : at + 2 * width + 1] == beyond[at]).all():
            inside = np.sign(mean[at]) * gap[at : at + width] >= 0.5 * abs(mean[at])
            return int(at + inside.argmax())
    return otherwise
