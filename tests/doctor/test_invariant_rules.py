"""Rules that read an invariant: what breaks it is found where it begins, what keeps it is left alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from danlu.doctor.diagnose import diagnose
from danlu.doctor.evidence import GRADIENT, LOSS, RATE, SCALE, Evidence
from danlu.doctor.finding import Severity
from danlu.doctor.series import series
from danlu.train.schedule import learning_rate

Signals = dict[str, Any]
"""Values at the steps 10, 20, ..., or one for all of them."""
LOOKS = np.arange(10, 210, 10)
FACTS = {
    "run.vocabulary": 4096,
    "run.drawn": True,
    "run.epoch_samples": 1000,
    "run.held_out_rows": 100,
    "train.global_batch": 8,
    "train.steps": 400,
    "train.precision": "fp32",
    "train.optimizer.learning_rate": 1e-3,
    "train.optimizer.betas": [0.9, 0.95],
    "train.optimizer.epsilon": 1e-8,
    "train.optimizer.weight_decay": 0.1,
    "train.optimizer.gradient_clipping": 1.0,
    "train.schedule.name": "cosine",
    "train.schedule.warmup_steps": 20,
    "train.schedule.final_ratio": 0.1,
}
NOISE = np.random.default_rng(0)


def of_schedule(steps: np.ndarray) -> list[float]:
    """Of steps done."""
    named = {"name": "cosine", "peak": 1e-3, "steps": 400, "warmup_steps": 20, "final_ratio": 0.1}
    return [learning_rate(int(step) - 1, **named) for step in steps]  # type: ignore[arg-type]


def later(value: float, other: float, since: int = 100) -> list[float]:
    """One value, and another from a step on."""
    return [other if step >= since else value for step in LOOKS]


class Case(NamedTuple):
    rule: str
    broken: Signals
    sound: Signals
    step: int | None = None
    resumes: tuple[int, ...] = ()


ENTROPY = (4.2 + 0.05 * NOISE.standard_normal(len(LOOKS))).tolist()
HASHES = list(range(1000, 1000 + len(LOOKS)))
OPTIMIZER = {"optimizer/beta1": 0.9, "optimizer/beta2": 0.95, "optimizer/epsilon": 1e-8, "optimizer/weight_decay": 0.1}
OFFSETS = {"batch/target_offset_0": 0.02, "batch/target_offset_1": 1.0, "batch/target_offset_2": 0.02}
LEARNS = {"probe/offset_0": 8.3, "probe/offset_1": later(8.3, 6.0, 20), "probe/offset_2": later(8.3, 8.0, 20)}
CASES = [
    Case("label_offset", OFFSETS | {"batch/target_offset_1": 0.03, "batch/target_offset_2": 1.0}, OFFSETS, 10),
    Case("label_offset", OFFSETS | {"batch/target_offset_1": 0.03}, OFFSETS, 10),
    Case("label_offset", LEARNS | {"probe/offset_0": later(8.3, 5.0, 20), "probe/offset_1": later(8.3, 8.0, 20)}, LEARNS, 30),
    # Tied embeddings prefer the input itself before they have learned.
    Case("label_offset", LEARNS | {"probe/offset_0": later(7.0, 3.0, 50)}, LEARNS | {"probe/offset_0": 7.0}, 60),
    Case("unsupervised", {"batch/supervised": later(1.0, 0.0)}, {"batch/supervised": 0.05}, 100),
    Case("end_unsupervised", {"batch/end_supervised": 0.0}, {"batch/end_supervised": 0.5}, 10),
    Case(
        "odd_batches",
        {"batch/entropy": [*ENTROPY, *ENTROPY[:5], 0.1, 0.1, 0.1, 4.2]},
        {"batch/entropy": [*ENTROPY, *ENTROPY[:5], 0.1, 4.2, 4.2, 4.2]},
        260,
    ),
    Case("repeated_samples", {"batch/repeated": later(0.0, 0.5)}, {"batch/repeated": 0.02}, 100),
    Case("fixed_order", {"batch/same_order": 1.0}, {"batch/same_order": 0.125}, 10),
    Case("replayed_data", {"batch/hash": HASHES[:10] * 2}, {"batch/hash": HASHES}, 110, (110,)),
    Case("forgetting", {"retained/loss": later(3.0, 3.5)}, {"retained/loss": later(3.0, 3.2)}, 100),
    Case("held_out_batches", {"batch/held_out": later(0.0, 0.125)}, {"batch/held_out": later(0.0, 0.125, 200)}, 100),
    Case("accumulation_mismatch", {"probe/accumulated": later(1.0, 2.0)}, {"probe/accumulated": 1.005}, 100),
    Case("unshuffled", {"batch/neighbours": 0.95}, {"batch/neighbours": 0.1}, 10),
    Case("shared_batches", {"batch/shared": 0.5}, {"batch/shared": 0.0}, 10),
    Case("evaluation_varies", {"probe/again": 0.02}, {"probe/again": 1e-5}, 10),
    Case("future_leak", {"probe/future": later(1e-6, 0.1)}, {"probe/future": 1e-6}, 100),
    Case("document_leak", {"probe/document": 0.01}, {"probe/document": 1e-6}, 10),
    Case("positions_unused", {"probe/unplaced": 0.0}, {"probe/unplaced": 1e-7}, 10),
    Case(
        "rotary_precision",
        {"probe/far": later(1e-6, 0.2), "probe/unplaced": 0.5},
        {"probe/far": 1e-5, "probe/unplaced": 0.5},
        100,
    ),
    Case("loss_mismatch", {"probe/batch_loss": 4.0, LOSS: later(4.0, 4.4)}, {"probe/batch_loss": 4.0, LOSS: 4.02}, 100),
    Case(
        "wrong_direction",
        {"probe/batch_loss": 5.0, "probe/batch_loss_after": 5.01},
        {"probe/batch_loss": 5.0, "probe/batch_loss_after": later(4.9, 5.1)},
        10,
    ),
    Case(
        "unmoved_parameters",
        {"sample/0.mlp/moved": 1.0, "sample/1.mlp/moved": 0.0},
        {"sample/0.mlp/moved": 1.0, "sample/1.mlp/moved": later(0.0, 0.1)},
        10,
    ),
    Case("rounded_weights", {"weights/bf16_share": later(0.001, 1.0)}, {"weights/bf16_share": 2.0**-16}, 100),
    Case("untied_embeddings", {"weights/tied_difference": later(0.0, 1e-4)}, {"weights/tied_difference": 0.0}, 100),
    Case("optimizer_settings", OPTIMIZER | {"optimizer/beta2": later(0.95, 0.999)}, OPTIMIZER, 100),
    Case("optimizer_settings", {"optimizer/decayed_vectors": 5.0}, {"optimizer/decayed_vectors": 0.0}, 10),
    Case("learning_rate_schedule", {RATE: [3 * rate for rate in of_schedule(LOOKS)]}, {RATE: of_schedule(LOOKS)}, 10),
    Case(
        "learning_rate_schedule",
        {RATE: of_schedule(LOOKS), "optimizer/learning_rate": 1e-3},
        {RATE: of_schedule(LOOKS), "optimizer/learning_rate": of_schedule(LOOKS)},
        10,
    ),
    Case(
        "optimizer_restarted",
        {"optimizer/updates": [*LOOKS[:10], *LOOKS[:10]]},
        {"optimizer/updates": LOOKS - 2},
        110,
        (101,),
    ),
    Case("gradients_kept", {"optimizer/kept_gradients": 12.0}, {"optimizer/kept_gradients": 0.0}, 10),
    Case("clipped_before_unscaling", {SCALE: 65536.0, GRADIENT: 70000.0}, {SCALE: 65536.0, GRADIENT: 1.1}, 10),
]
FIRST = [("first_loss", 4 * math.log(4096), math.log(4096) + 0.4), ("first_loss", 0.3, math.log(4096) - 0.4)]


def evidence(signals: Signals, resumes: tuple[int, ...] | list[int] = (), **facts: Any) -> Evidence:
    made = {}
    for name, values in signals.items():
        array = np.asarray(values, dtype=np.float64)
        steps = LOOKS if array.ndim == 0 else 10 * np.arange(1, len(array) + 1)
        made[name] = series(steps, np.broadcast_to(array, len(steps)))
    return Evidence(made, {**FACTS, **facts}, resumes, own=True)


def every(one: Evidence) -> dict[str, Any]:
    return {each.rule: each for finding in diagnose(one).findings for each in (finding, *finding.symptoms)}


@pytest.mark.parametrize("case", CASES, ids=[case.rule for case in CASES])
def test_what_is_broken_is_found_and_what_is_sound_is_not(case: Case) -> None:
    resumes = case.resumes
    found = every(evidence(case.broken, resumes))
    assert case.rule in found
    finding = found[case.rule]
    assert finding.severity >= Severity.WARNING and finding.step == case.step
    assert all(text.en and text.zh for text in (finding.verdict, finding.next, *finding.why, *finding.considered))
    sound = diagnose(evidence(case.sound, resumes))
    assert case.rule in sound.silent, "it judged, and found nothing"
    assert case.rule in diagnose(evidence({}, resumes)).unjudged, "without the signal there is no verdict"


@pytest.mark.parametrize(("rule", "broken", "sound"), FIRST)
def test_the_first_loss_is_that_of_a_model_that_knows_nothing(rule: str, broken: float, sound: float) -> None:
    def first(loss: float, **facts: Any) -> Evidence:
        return Evidence({LOSS: series([1, 2], [loss, loss])}, {**FACTS, **facts}, own=True)

    assert rule in every(first(broken)) and rule in diagnose(first(sound)).silent
    assert rule in diagnose(first(broken, **{"run.drawn": False})).unjudged, "a pre-trained model knows something"


def test_the_multiple_of_the_first_loss_is_told() -> None:
    one = Evidence({LOSS: series([1], [4 * math.log(4096)])}, FACTS, own=True)
    assert "4 micro-batches" in every(one)["first_loss"].why[1].en


def test_one_cause_is_one_finding() -> None:
    """Random evaluations move every probe."""
    moved = {"probe/again": 0.05, "probe/future": 0.05, "probe/document": 0.04, "probe/far": 0.05, "probe/unplaced": 0.1}
    (finding,) = diagnose(evidence(moved)).findings
    assert finding.rule == "evaluation_varies"
    assert {symptom.rule for symptom in finding.symptoms} == {"future_leak", "document_leak", "rotary_precision"}


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 20])
def test_the_schedule_is_that_of_the_trainer(shape: Any, warmup: int) -> None:
    named = {"peak": 1e-3, "steps": 400, "warmup_steps": warmup, "final_ratio": 0.1}
    rates = [learning_rate(step, name=shape, **named) for step in range(400)]  # type: ignore[arg-type]
    facts = FACTS | {"train.schedule.name": shape, "train.schedule.warmup_steps": warmup}
    one = Evidence({RATE: series(range(1, 401), rates)}, facts, own=True)
    assert "learning_rate_schedule" in diagnose(one).silent


@pytest.mark.parametrize(("rate", "rule"), [(0.3, "learning_rate_too_high"), (1e-6, "learning_rate_too_low")])
def test_a_rate_beyond_all_that_is_published_is_told_by_itself(rate: float, rule: str) -> None:
    loss = series(range(1, 121), 8 * np.arange(1, 121) ** -0.1)
    for own in (True, False):  # of another program's log it is not known whether the optimizer is Adam
        diagnosis = diagnose(Evidence({LOSS: loss}, {**FACTS, "train.optimizer.learning_rate": rate}, own=own))
        assert ([finding.rule for finding in diagnosis.findings] == [rule]) == own
    assert not diagnose(Evidence({LOSS: loss}, FACTS, own=True)).findings
