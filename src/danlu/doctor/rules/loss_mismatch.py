"""The loss of a step is not what an evaluation of the same batch with the same weights gives."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/batch_loss"
LEAST = 0.02


def check(evidence: Evidence, found: Found) -> Finding | None:
    asked, loss = evidence.need(SIGNAL).finite, evidence.need(names.LOSS).finite
    steps, at, beside = np.intersect1d(asked.steps, loss.steps, return_indices=True)
    if not len(steps):
        raise NotEnoughData(f"{SIGNAL} and {names.LOSS} share no step")
    evaluated, trained = asked.values[at], loss.values[beside]
    beyond = np.abs(trained - evaluated) > LEAST * np.abs(evaluated)
    if not beyond.any():
        return None
    first = int(beyond.argmax())
    ratio = float(trained[first] / evaluated[first]) if evaluated[first] else float("inf")
    return Finding(
        "loss_mismatch",
        Severity.WARNING,
        0.9,
        Text("training and evaluation do not compute the same loss", "训练与评估计算的损失不一致"),
        (
            Text(
                f"at step {steps[first]} the step's loss was {trained[first]:.4g}, and an evaluation of its batch ahead of it "
                f"gave {evaluated[first]:.4g} ({ratio:.3g} times)",
                f"第 {steps[first]} 步训练损失为 {trained[first]:.4g}，而此前对同一批次的评估为 "
                f"{evaluated[first]:.4g}（{ratio:.3g} 倍）",
            ),
        ),
        Text(
            "compare what both divide by, which weights and which targets they take",
            "比较两者的除数、所用的权重和目标",
        ),
        {},
        (Text("dropout: then it is not compared", "dropout：此时不做比较"),),
        int(steps[first]),
    )


RULE = Rule(
    "loss_mismatch",
    Text("a step loss that an evaluation of its batch does not give", "训练损失与同一批次的评估不符"),
    (SIGNAL, names.LOSS),
    f"{LEAST:.0%}, without dropout",
    "both are the mean of the same losses; half precision moves it by less than 1e-2",
    "one pass over a whole batch a probe",
    Severity.WARNING,
    check,
    frozenset({"validation_below_training", "evaluation_mismatch", "overfitting"}),
    frozenset({"first_loss"}),
)
