"""The first thing that differs between one step of two engines: an output, a gradient or an update, in the order of computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from danlu.compare.steps import TRACE

OUTPUT, GRADIENT, UPDATE = 1e-4, 1e-3, 1e-3
"""Relative differences (L2 norm) that are not rounding any more."""
CLEAR = 1e-3
"""Share of the largest gradient of a tensor above which an entry's update is looked at: Adam divides by the gradient's own size,
so that where there is next to none, rounding alone decides about the step."""


def distance(mine: NDArray[Any], theirs: NDArray[Any]) -> float:
    """|mine - theirs| / |theirs| in the L2 norm; 0 where both are 0, and infinite where one is not finite."""
    if mine.shape != theirs.shape or not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
        return float("inf")
    apart, size = (float(np.linalg.norm(array.astype(np.float64).ravel())) for array in (mine - theirs, theirs))
    return apart / size if size else float("inf") if apart else 0.0


def difference(one: Path, other: Path) -> dict[str, Any] | None:
    """{what, where, gap} of two traces, or None. Outputs come in the order of the forward pass, gradients in that of backward."""
    outputs, gradients, updates = (
        (dict(np.load(one / TRACE.format(part))), dict(np.load(other / TRACE.format(part))))
        for part in ("outputs", "gradients", "updates")
    )
    for what, (mine, theirs), limit in (("output", outputs, OUTPUT), ("gradient", gradients, GRADIENT)):
        for name, array in mine.items():
            if (gap := distance(theirs[name], array)) > limit:
                return {"what": what, "where": name, "gap": gap}
    for name, array in updates[0].items():
        gradient = np.abs(gradients[0][name])
        clear = gradient > CLEAR * gradient.max()
        if (gap := distance(updates[1][name][clear], array[clear])) > UPDATE:
            return {"what": "update", "where": name, "gap": gap}
    return None
