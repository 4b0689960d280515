"""Dynamic loss scaling, and why a step is not made. No framework."""

from __future__ import annotations

import math
from typing import Any

from danlu.engines.base import LOSS_SCALE_OVERFLOW

INITIAL_SCALE, GROWTH_STEPS = 2.0**16, 2000


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018): halved when a gradient overflows, doubled after 2,000 steps without."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.value = INITIAL_SCALE if enabled else 1.0
        self.good_steps = 0

    def refuses(self, loss_is_finite: bool, norm: float) -> str | None:
        """Why gradients of that norm are not to be used; None: they are."""
        if not loss_is_finite:
            return "the loss is not finite"
        if math.isfinite(norm):
            return None
        return LOSS_SCALE_OVERFLOW if self.value > 1 else "the gradient is not finite"

    def update(self, overflowed: bool) -> None:
        """Learn from a step."""
        if not self.enabled:
            return
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.value /= 2
        elif self.good_steps == GROWTH_STEPS:
            self.value, self.good_steps = self.value * 2, 0

    def state(self) -> dict[str, Any]:
        """Its numbers (JSON)."""
        return {"scale": self.value, "good_steps": self.good_steps} if self.enabled else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``; what was saved in another precision holds none, and the scale starts anew."""
        if state and self.enabled:
            self.value, self.good_steps = state["scale"], state["good_steps"]
