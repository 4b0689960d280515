"""The learning rate of every step in closed form."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int, *, name: Literal["cosine", "linear", "constant"], peak: float, steps: int, warmup_steps: int, final_ratio: float
) -> float:
    """Learning rate of a step, counted from 0 to steps - 1.

    Linear warm-up: step i < warmup_steps has peak (i + 1) / (warmup_steps + 1), so that no step is wasted on a rate of 0. The first
    step after it has the peak; cosine (Loshchilov & Hutter 2017) and linear reach peak x final_ratio at the last step.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if name == "constant":
        return peak
    progress = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)
    remaining = (1 + math.cos(math.pi * progress)) / 2 if name == "cosine" else 1 - progress
    return peak * (final_ratio + (1 - final_ratio) * remaining)
