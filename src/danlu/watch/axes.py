"""What a run can be drawn over besides its steps: tokens, time at work, floating-point operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from danlu.watch import store
from danlu.watch.ends import clock

AXES = ("step", "tokens", "time", "flops")
KNOTS = 500
"""Steps whose time is read; those between are taken to be of one pace."""


class Axis(NamedTuple):
    """Some steps, rising, and where they lie on the axis; between them lines are straight."""

    steps: npt.NDArray[np.int64]
    x: npt.NDArray[Any]

    def place(self, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Where other steps lie; beyond the ends the line goes on as from end to end."""
        if self.steps is self.x:  # steps themselves, which stay whole numbers
            return steps
        inside = np.interp(steps, self.steps, self.x)
        pace = (self.x[-1] - self.x[0]) / max(1, self.steps[-1] - self.steps[0])
        beyond = np.minimum(0, steps - self.steps[0]) + np.maximum(0, steps - self.steps[-1])
        return inside + pace * beyond  # type: ignore[no-any-return]


def axes(path: Path, knots: int = KNOTS) -> dict[str, Axis]:
    """The axes that a metrics file has, by name of `AXES`; steps are always one.

    Tokens and FLOPs go by what the newest segment says that a step has of them. Time is in seconds that the run was at work: the
    pauses before its resumes are left out.
    """
    segments = store.segments(path)
    steps, moments = clock(path, knots)
    if not len(steps):
        none = np.array([0, 1])
        return {"step": Axis(none, none)}
    ends = np.array([steps[0], max(steps[-1], steps[0] + 1)])
    found = {"step": Axis(ends, ends)}
    for axis in ("tokens", "flops"):
        each = segments[-1].info.get(f"{axis}_per_step")
        if isinstance(each, int | float) and each > 0:
            found[axis] = Axis(ends, ends * float(each))
    found["time"] = Axis(steps, np.maximum.accumulate(at_work(moments, segments)))
    return {axis: found[axis] for axis in AXES if axis in found}


def at_work(moments: npt.NDArray[np.float64], segments: list[store.Segment]) -> npt.NDArray[np.float64]:
    """Moments (seconds since 1970) as seconds in which a segment of the run was open."""
    bounds, passed, total = [], [], 0.0
    for one in segments:
        bounds += [one.started, max(one.started, one.seen)]
        passed += [total, total + max(0.0, one.seen - one.started)]
        total = passed[-1]
    return np.interp(moments, np.maximum.accumulate(bounds), passed) if bounds else moments
