"""The gradient of a batch depends on the micro-batches that it is cut into."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/accumulated"
LEAST = 0.02


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    beyond = np.abs(one.values - 1) > LEAST
    if not beyond.any():
        return None
    first = int(beyond.argmax())
    step, ratio = int(one.steps[first]), float(one.values[first])
    return Finding(
        "accumulation_mismatch",
        Severity.CRITICAL,
        0.95,
        Text("micro-batches do not add up to the gradient of the batch", "各微批次累积的梯度不等于整个批次的梯度"),
        (
            Text(
                f"at step {step} the gradient of two samples was {ratio:.3g} times as large one after the other as both at once",
                f"第 {step} 步，两个样本逐个累积所得的梯度是同时计算的 {ratio:.3g} 倍",
            ),
        ),
        Text(
            "divide each micro-batch's summed loss by the supervised tokens of the batch; zero gradients after a step alone",
            "每个微批次的损失之和应除以整个批次的受监督 token 数，并且只在更新之后清零梯度",
        ),
        {},
        (),
        step,
    )


RULE = Rule(
    "accumulation_mismatch",
    Text("micro-batches that do not add up to the batch", "微批次累积与整个批次不等"),
    (SIGNAL,),
    f"gradient norms {LEAST:.0%} apart",
    "a definition; the order of sums in half precision moves a norm by less than 1e-2",
    "forward and backward passes over a few half rows a probe, where steps are accumulated",
    Severity.CRITICAL,
    check,
    frozenset({"exploding_gradients", "first_loss", "learning_rate_too_high", "loss_mismatch", "plateau", "slow_descent"}),
)
