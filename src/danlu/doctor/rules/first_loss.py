"""The first loss is not that of a model that knows nothing."""

from __future__ import annotations

import math

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

ABOVE = 1.25
BELOW = 0.8


def check(evidence: Evidence, found: Found) -> Finding | None:
    vocabulary = evidence.number("run.vocabulary")
    if vocabulary is None or vocabulary < 2 or not evidence.facts.get("run.drawn"):
        raise NotEnoughData("the size of the vocabulary is not known, or the run did not begin from random weights")
    loss = evidence.need(names.LOSS)
    if loss.steps[0] > 1 or not math.isfinite(loss.values[0]):
        raise NotEnoughData(f"{names.LOSS} of the first step is not there")
    first, expected = float(loss.values[0]), math.log(vocabulary)
    ratio = first / expected
    if BELOW <= ratio <= ABOVE:
        return None
    multiple = round(ratio)
    told = [
        Text(
            f"the first loss is {first:.4g}; a model that knows nothing has ln {vocabulary:.0f} = {expected:.4g}",
            f"首步损失为 {first:.4g}；一无所知的模型应为 ln {vocabulary:.0f} = {expected:.4g}",
        )
    ]
    if multiple > 1 and abs(ratio - multiple) < 0.05 * multiple:
        told.append(
            Text(
                f"it is {multiple} times that: a sum over {multiple} micro-batches or ranks that is not divided",
                f"恰为其 {multiple} 倍：对 {multiple} 个微批次或进程求和而没有取平均",
            )
        )
    return Finding(
        "first_loss",
        Severity.CRITICAL if ratio > ABOVE else Severity.WARNING,
        0.9,
        Text(f"the first loss is {ratio:.2g} times ln V", f"首步损失是 ln V 的 {ratio:.2g} 倍"),
        tuple(told),
        Text(
            "check what the loss is divided by (supervised tokens of all micro-batches and ranks), and the scale of the first "
            "weights",
            "检查损失的除数（所有微批次和进程的监督 token 数）以及初始权重的尺度",
        ),
        {},
        (Text("a pre-trained model: it would begin below ln V", "预训练模型：起点会低于 ln V"),),
        1,
        Chart(names.LOSS, loss),
    )


RULE = Rule(
    "first_loss",
    Text("a first loss that is not ln(vocabulary)", "首步损失不等于 ln(词表大小)"),
    (names.LOSS, "run.vocabulary"),
    f"below {BELOW:g} or above {ABOVE:g} times ln V at the first step of random weights",
    "an untrained model spreads its probability; logits of usual first weights add less than a quarter at any width up to 8192",
    "none: it is recorded anyway",
    Severity.CRITICAL,
    check,
    frozenset({"exploding_gradients", "divergence", "not_learning", "plateau", "slow_descent", "spike"}),
)
