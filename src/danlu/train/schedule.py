"""The learning rate of every step in closed form."""

from __future__ import annotations

import math
from typing import Literal

from danlu.recipe import Recipe


def learning_rate(
    step: int, *, name: Literal["cosine", "linear", "constant"], peak: float, steps: int, warmup_steps: int, final_ratio: float
) -> float:
    """Learning rate of a step, counted from 0 to steps - 1.

    Linear warm-up: step i < warmup_steps has peak (i + 1) / warmup_steps, so that no step is wasted on a rate of 0 and the last
    of them has the peak. From there (without a warm-up from step 0) cosine (Loshchilov & Hutter, arXiv:1608.03983) and linear
    fall, and reach peak x final_ratio at the last step. A run that is warm-up alone, or one step alone, ends at the peak.
    """
    if step < warmup_steps:
        return peak * ((step + 1) / warmup_steps)
    if name == "constant":
        return peak
    top = max(warmup_steps - 1, 0)
    progress = (step - top) / max(steps - 1 - top, 1)
    remaining = (1 + math.cos(math.pi * progress)) / 2 if name == "cosine" else 1 - progress
    return peak * (final_ratio + (1 - final_ratio) * remaining)


def rate_at(recipe: Recipe, step: int) -> float:
    """The recipe's learning rate of a step, counted from 0."""
    train = recipe.train
    return learning_rate(
        step,
        name=train.schedule.name,
        peak=train.optimizer.learning_rate,
        steps=train.steps,
        warmup_steps=recipe.warmup_steps,
        final_ratio=train.schedule.final_ratio,
    )
