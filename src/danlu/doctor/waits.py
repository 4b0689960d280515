"""What share of a step a wait takes; three rules ask for it."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence

POINTS = 20
RECENT = 100
WARN = 0.1
"""A tenth of the run's time and money."""


def share_of_step(evidence: Evidence, wait: str) -> tuple[float, int]:
    """(median share of a step over the last RECENT steps that both signals have, first of these steps)."""
    waited, step = evidence.need(wait, POINTS).finite, evidence.need(names.STEP, POINTS).finite
    common, at, beside = np.intersect1d(waited.steps, step.steps, return_indices=True)
    if len(common) < POINTS:
        raise names.NotEnoughData(f"{wait} and {names.STEP} share fewer than {POINTS} steps")
    shares = waited.values[at] / np.maximum(step.values[beside], 1e-12)
    return float(np.median(shares[-RECENT:])), int(common[-RECENT:][0])
