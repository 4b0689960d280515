"""Each rule finds its fault in a run that has it, at the step where it begins, and is silent on the healthy twin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from danlu.doctor.diagnose import diagnose
from danlu.doctor.evidence import (
    COMMUNICATION,
    DATA_WAIT,
    EVALUATED,
    GRADIENT,
    IDLE,
    LOSS,
    SCALE,
    SPEED,
    STEP,
    VALIDATION,
    Evidence,
)
from danlu.doctor.finding import Severity
from danlu.doctor.rule import all_rules
from danlu.doctor.series import series

from . import test_invariant_rules
from .conftest import STEPS, Fault, evidence, healthy, named

Values = dict[str, np.ndarray]
Noise = np.random.Generator


def diverges(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS] += np.maximum(at - 400, 0) * 0.02
    v[VALIDATION] += np.maximum(at - 400, 0) * 0.02
    v[GRADIENT] *= np.exp(np.maximum(at - 380, 0) * 0.01)


def ends_in_nan(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][at >= 500] = np.nan
    v[GRADIENT][at >= 500] = np.inf


def spikes_for_good(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][at >= 585] += 1.5
    v[GRADIENT][at >= 580] *= 6


def stays(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][:] = 9.0 + 0.02 * noise.standard_normal(len(at))
    v[VALIDATION][:] = 9.0


def stops_falling(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][:] = np.maximum(2 + 6.5 * at**-0.35, 5.2) + 0.01 * noise.standard_normal(len(at))
    v[VALIDATION][:] = np.maximum(2 + 6.5 * at**-0.35, 5.2)


def swings(v: Values, at: np.ndarray, noise: Noise) -> None:
    wave = 1 + 0.5 * (np.sin(at / 15) > 0.3) * (at > 60)
    v[VALIDATION] *= wave


def creeps_along(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][:] = 9.0 - 0.6 * at / len(at) + 0.01 * noise.standard_normal(len(at))
    v[VALIDATION][:] = 9.0 - 0.6 * at / len(at)


def overfits(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[VALIDATION] *= 1 + np.maximum(at - 250, 0) / 1500


def leaks(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[VALIDATION] *= 0.85


def explodes(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[GRADIENT][at >= 570] *= 1e4


def vanishes(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[GRADIENT][at > 100] *= 1e-7
    v[LOSS][:] = np.maximum(v[LOSS], 6)


def no_gradient(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[GRADIENT][at > 590] = 0


def dead(v: Values, at: np.ndarray, noise: Noise) -> None:
    v["layer/2/update_ratio"][at > 300] = 0


def tiny_updates(v: Values, at: np.ndarray, noise: Noise) -> None:
    for layer in range(4):
        v[f"layer/{layer}/update_ratio"] *= 1e-3


def collapses(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[SCALE] = 65536.0 * 0.5 ** np.minimum(np.maximum(at - 500, 0) // 10, 14)


def repeats(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS] += 0.15 * np.sin(2 * np.pi * at / 50)


def memory_leaks(v: Values, at: np.ndarray, noise: Noise) -> None:
    v["memory/device_bytes"] += 2e6 * at


def slows_down(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[STEP][at > 500] *= 1.1
    v[SPEED][at > 500] /= 1.1


def waits_for_one(v: Values, at: np.ndarray, noise: Noise) -> None:
    for rank in range(3):
        v[f"time/communication@{rank}"] += 0.01


def waits_for_data(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[DATA_WAIT] += 0.04


def waits_for_others(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[COMMUNICATION] = 0.04 + 0 * v[STEP]


def idles(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[IDLE] = 0.03 + 0 * v[STEP]


def other_model(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[EVALUATED] = v[LOSS] * np.exp(1 + 0.8 * noise.standard_normal(len(at)))


def steps_up(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[LOSS][at >= 300] += 0.3


def warm_up_bump(v: Values, at: np.ndarray, noise: Noise) -> None:
    v[GRADIENT][(at > 40) & (at < 60)] *= 1e3


def hot(v: Values, at: np.ndarray, noise: Noise) -> None:
    diverges(v, at, noise)
    v[GRADIENT][at > 500] *= 1e5


CASES: list[tuple[str, Fault, int | None, dict[str, Any]]] = [
    ("divergence", diverges, 400, {}),
    ("nonfinite", ends_in_nan, 500, {}),
    ("spike", spikes_for_good, 585, {}),
    ("not_learning", stays, 1, {}),
    ("plateau", stops_falling, 37, {}),
    ("oscillation", swings, 80, {}),
    ("slow_descent", creeps_along, None, {}),
    ("learning_rate_too_low", creeps_along, None, {}),
    ("learning_rate_too_low", tiny_updates, None, {}),
    ("learning_rate_too_high", hot, 400, {}),
    ("learning_rate_too_high", diverges, 400, {"facts": {"train.optimizer.learning_rate": 1.0}}),
    ("warmup_too_short", warm_up_bump, 41, {"facts": {"train.schedule.warmup_steps": 38}}),
    ("overfitting", overfits, 260, {}),
    ("validation_below_training", leaks, None, {}),
    ("exploding_gradients", explodes, 570, {}),
    ("vanishing_gradients", vanishes, 101, {}),
    ("vanishing_gradients", no_gradient, 591, {}),
    ("dead_layers", dead, 301, {}),
    ("loss_scale_collapse", collapses, None, {}),
    ("periodic_loss", repeats, None, {}),
    ("memory_creep", memory_leaks, None, {}),
    ("throughput_drop", slows_down, 501, {}),
    ("straggler", waits_for_one, None, {}),
    ("data_bound", waits_for_data, None, {}),
    ("communication_bound", waits_for_others, None, {}),
    ("bubble_bound", idles, None, {}),
    ("evaluation_mismatch", other_model, None, {}),
    ("resume_step", steps_up, 300, {"resumes": [300]}),
]
INFORMATION = {"warmup_too_short"}  # what passes is only worth knowing


def test_every_rule_has_a_case() -> None:
    of_invariants = {case.rule for case in test_invariant_rules.CASES} | {rule for rule, *_ in test_invariant_rules.FIRST}
    assert {case[0] for case in CASES} | of_invariants == {rule.id for rule in all_rules()}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("rule", "fault", "step", "settings"), CASES, ids=[f"{case[0]}-{case[1].__name__}" for case in CASES])
def test_the_fault_is_found(rule: str, fault: Fault, step: int | None, settings: dict[str, Any], seed: int) -> None:
    diagnosis = diagnose(evidence(fault, seed, **settings))
    every = {one.rule: one for finding in diagnosis.findings for one in (finding, *finding.symptoms)}
    assert rule in every, named(diagnosis)
    finding = every[rule]
    assert finding.severity >= (Severity.INFO if rule in INFORMATION else Severity.WARNING)
    if step is not None:
        assert finding.step is not None and abs(finding.step - step) <= 40
    assert finding.verdict.en and finding.verdict.zh and finding.why and finding.next.zh
    assert all(text.en and text.zh for text in (*finding.why, *finding.considered))
    assert 0 < finding.confidence <= 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("settings", [{}, {"own": False}, {"resumes": [300], "facts": {"train.schedule.warmup_steps": 37}}])
def test_the_healthy_twin_is_left_alone(seed: int, settings: dict[str, Any]) -> None:
    diagnosis = diagnose(evidence(None, seed, **settings))
    assert not named(diagnosis)
    assert {rule.id for rule in all_rules()} == {*diagnosis.silent, *diagnosis.unjudged, *(f.rule for f in diagnosis.findings)}


def test_one_point_is_never_a_spike(found: Any) -> None:
    def jump(v: Values, at: np.ndarray, noise: Noise) -> None:
        v[LOSS][[200, 201, 400]] += 3

    assert "spike" not in found(jump)


def test_a_spike_that_comes_back_is_information(found: Any) -> None:
    def bump(v: Values, at: np.ndarray, noise: Noise) -> None:
        v[LOSS][(at > 300) & (at < 312)] += 2
        v[GRADIENT][(at > 295) & (at < 312)] *= 20

    finding = found(bump)["spike"]
    assert finding.severity == Severity.INFO and "recovered" in finding.verdict.en
    assert any("gradient norm rose" in text.en for text in finding.why)
    assert any("no gradient norm" in text.en for text in found(bump, without=(GRADIENT,))["spike"].why)


def test_a_single_nan_that_passes_is_information(found: Any) -> None:
    def skip(v: Values, at: np.ndarray, noise: Noise) -> None:
        v[LOSS][300] = np.nan

    assert found(skip)["nonfinite"].severity == Severity.INFO


def test_nan_for_steps_without_a_measurement_is_no_fault() -> None:
    at, values = healthy()
    sparse = np.where(at % 20 == 0, values[VALIDATION], np.nan)
    one = evidence()
    from danlu.doctor.series import series

    assert not named(diagnose(type(one)({**one.signals, VALIDATION: series(at, sparse)}, one.facts)))


def test_a_gradient_norm_of_zero_throughout_was_not_computed() -> None:
    def absent(v: Values, at: np.ndarray, noise: Noise) -> None:
        v[GRADIENT][:] = 0

    diagnosis = diagnose(evidence(absent))
    assert not named(diagnosis) and "not computed" in diagnosis.unjudged["vanishing_gradients"]


def test_overfitting_needs_a_training_loss() -> None:
    diagnosis = diagnose(evidence(overfits, without=(LOSS,)))
    assert "no training loss" in diagnosis.unjudged["overfitting"]


def test_overfitting_is_no_divergence(found: Any) -> None:
    assert set(found(overfits)) == {"overfitting"}


def test_a_fixed_amount_of_work_is_not_assumed(found: Any) -> None:
    assert found(slows_down, own=False)["throughput_drop"].severity == Severity.INFO
    assert found(leaks, own=False)["validation_below_training"].severity == Severity.INFO


def test_the_time_until_memory_is_full() -> None:
    limit = {"memory/device_bytes": 6e9}
    (finding,) = diagnose(evidence(memory_leaks, memory_limits=limit, facts={"train.steps": 10 * STEPS})).findings
    assert finding.severity == Severity.CRITICAL and "more steps" in finding.why[0].en
    left = float(finding.why[0].en.split("after ")[1].split(" ")[0].replace(",", ""))
    assert math.isclose(left, (6e9 - 4e9 - 2e6 * STEPS) / 2e6, rel_tol=0.1)
    (later,) = diagnose(evidence(memory_leaks, memory_limits=limit)).findings
    assert later.severity == Severity.WARNING


@pytest.mark.parametrize(
    ("mapped", "left", "severity"),
    [
        (None, None, Severity.INFO),
        (1e9, None, Severity.INFO),
        (1e8, None, Severity.WARNING),
        (1e8, 1e9, Severity.CRITICAL),
        (1e9, 1e9, Severity.INFO),
    ],
)
def test_memory_of_mapped_data_is_no_leak(mapped: float | None, left: float | None, severity: Severity) -> None:
    """800 steps of a megabyte each: the data, which a process maps, may account for it."""
    grows = series(range(1, 801), 1e9 + 1e6 * np.arange(800))
    known = {"train.steps": 8000, "run.mapped_bytes": mapped, "run.resident_limit": None if left is None else 1.8e9 + left}
    one = Evidence({"memory/resident_bytes": grows}, known, own=True)
    (finding,) = diagnose(one).findings
    assert (finding.rule, finding.severity) == ("memory_creep", severity)


def test_waiting_for_data_on_a_cpu_is_contention(found: Any) -> None:
    facts = {"train.device": "cpu"}
    assert found(waits_for_data, facts=facts)["data_bound"].severity == Severity.INFO

    def much(v: Values, at: np.ndarray, noise: Noise) -> None:
        v[DATA_WAIT] += 0.06

    assert found(much, facts=facts)["data_bound"].severity == Severity.WARNING


def test_a_rate_near_zero_is_named(found: Any) -> None:
    causes = found(stays, facts={"train.optimizer.learning_rate": 1e-7})
    assert set(causes) == {"learning_rate_too_low"} and causes["learning_rate_too_low"].severity == Severity.CRITICAL
    assert causes["learning_rate_too_low"].patch == {"train.optimizer.learning_rate": 1e-6}


def test_one_cause_one_finding(found: Any) -> None:
    causes = found(hot)
    assert set(causes) == {"learning_rate_too_high"}
    finding = causes["learning_rate_too_high"]
    assert {symptom.rule for symptom in finding.symptoms} >= {"divergence", "exploding_gradients"}
    assert finding.severity == Severity.CRITICAL
    assert finding.patch == {"train.optimizer.learning_rate": 1e-4}


def test_a_patch_names_fields_of_the_recipe() -> None:
    from danlu.recipe.fields import dotted, every_field

    fields = {dotted(entry.path) for entry in every_field()}
    for _, fault, _, settings in CASES:
        for finding in diagnose(evidence(fault, **settings)).findings:
            assert set(finding.patch) <= fields
