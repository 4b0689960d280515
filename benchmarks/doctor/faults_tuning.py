"""Faults of tuning a pre-trained model on conversations."""

from __future__ import annotations

from typing import Any

from benchmarks.doctor.fault import BASES, CURVE, Fault, rules
from benchmarks.doctor.faults_data import IGNORED, changed, end_masked
from danlu.data.batches import TrainingBatches

TUNED = BASES["tuned"]


def _all_masked(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    batch["targets"][:] = IGNORED


FAULTS = (
    Fault("tuning: all masked", "no answer has a target", rules("unsupervised"), TUNED, changed(_all_masked)),
    Fault("tuning: end masked", "the end of an answer is no target", rules("end_unsupervised"), TUNED, changed(end_masked)),
    Fault(
        "tuning: another template",
        "chatml, which the weights do not know",
        rules("chat_template"),
        TUNED,
        overrides=("data.chat.template=chatml",),
    ),
    Fault(
        "tuning: rate of pre-training",
        "3e-3, as the weights were made with",
        rules("usual_rates"),
        TUNED,
        overrides=("train.optimizer.learning_rate=3e-3",),
    ),
    Fault(
        "tuning: forgets",
        "conversations of another grammar alone, at a rate three times as high",
        rules("forgetting"),
        TUNED,
        overrides=("train.optimizer.learning_rate=9e-4",),
        visible=CURVE,
        grammar=2,
    ),
)
