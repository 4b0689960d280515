"""Synthetic runs whose truth is known: a power law with noise, and what can go wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from danlu.doctor.diagnose import Diagnosis, diagnose
from danlu.doctor.evidence import DATA_WAIT, GRADIENT, LOSS, RATE, SPEED, STEP, VALIDATION, Evidence
from danlu.doctor.finding import Finding, Severity
from danlu.doctor.series import Series, series

STEPS = 600
Signals = dict[str, Series]
Fault = Callable[[dict[str, np.ndarray], np.ndarray, np.random.Generator], None]


def healthy(seed: int = 0, steps: int = STEPS) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(steps, values by signal) of a run without a fault; the validation is a value a step here and thinned by `evidence`."""
    noise = np.random.default_rng(seed)
    at = np.arange(1, steps + 1)
    curve = 2.0 + 6.5 * at**-0.35
    warmup = max(steps // 16, 1)
    rate = 3e-4 * np.where(at <= warmup, at / warmup, 0.55 + 0.45 * np.cos(np.pi * (at - warmup) / (steps - warmup)))
    step_time = 0.1 * (1 + 0.01 * noise.standard_normal(steps))
    values = {
        LOSS: curve + 0.03 * noise.standard_normal(steps),
        VALIDATION: curve + 0.02 + 0.004 * noise.standard_normal(steps),
        GRADIENT: (0.3 + 4 / at) * np.exp(0.2 * noise.standard_normal(steps)),
        RATE: rate,
        STEP: step_time,
        SPEED: 8192 / step_time,
        DATA_WAIT: 0.001 * (1 + noise.random(steps)),
        "memory/device_bytes": 4e9 + 1e6 * noise.standard_normal(steps),
    }
    for layer in range(4):
        values[f"layer/{layer}/gradient_norm"] = values[GRADIENT] / 2 * np.exp(0.1 * noise.standard_normal(steps))
        values[f"layer/{layer}/update_ratio"] = 1e-3 * np.exp(0.2 * noise.standard_normal(steps))
    for rank in range(4):
        values[f"time/communication@{rank}"] = 0.004 * (1 + 0.1 * noise.random(steps))
    return at, values


def evidence(
    fault: Fault | None = None, seed: int = 0, steps: int = STEPS, without: tuple[str, ...] = (), **settings: Any
) -> Evidence:
    """The healthy run with a fault put into it, and without some signals."""
    at, values = healthy(seed, steps)
    if fault is not None:
        fault(values, at, np.random.default_rng(seed + 1))
    signals = {name: series(at, array) for name, array in values.items() if name not in without}
    if VALIDATION in signals:
        signals[VALIDATION] = series(at[19::20], values[VALIDATION][19::20])
    facts: Mapping[str, Any] = {"train.optimizer.learning_rate": 3e-4, "train.steps": steps, **settings.pop("facts", {})}
    return Evidence(signals, facts, own=settings.pop("own", True), **settings)


def named(diagnosis: Diagnosis) -> set[str]:
    """Rules with a finding of warning or above, symptoms among them."""
    every = [one for finding in diagnosis.findings for one in (finding, *finding.symptoms)]
    return {one.rule for one in every if one.severity >= Severity.WARNING}


@pytest.fixture
def found() -> Callable[..., dict[str, Finding]]:
    """Causes by rule id of a run with a fault."""

    def find(fault: Fault | None = None, **settings: Any) -> dict[str, Finding]:
        return {finding.rule: finding for finding in diagnose(evidence(fault, **settings)).findings}

    return find
