"""Batches whose tokens are unlike those of all others: damaged text, noise, one token repeated."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import SIGMA, runs, trailing_median

SIGNAL = "batch/entropy"
POINTS = 20
BEHIND = 51
SIGMAS = 8.0
LEAST = 0.05
IN_A_ROW = 3


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL, POINTS).finite
    usual = trailing_median(one.values, BEHIND)
    usual[: POINTS - 1] = one.values[: POINTS - 1]
    away = np.abs(one.values - usual)
    spread = SIGMA * float(np.median(np.abs(one.values - np.median(one.values))))
    odd = [
        (start, stop)
        for start, stop in runs(away > np.maximum(SIGMAS * spread, LEAST * np.abs(usual)))
        if stop - start >= IN_A_ROW
    ]
    if not odd:
        return None
    start, stop = odd[0]
    step, last = int(one.steps[start]), int(one.steps[stop - 1])
    now, was = float(np.median(one.values[start:stop])), float(usual[start])
    harmful = any(rule in found for rule in ("divergence", "nonfinite"))
    return Finding(
        "odd_batches",
        Severity.CRITICAL if harmful else Severity.WARNING,
        0.9,
        Text(f"the batches of steps {step} to {last} are unlike all others", f"第 {step} 至 {last} 步的批次与其他批次明显不同"),
        (
            Text(
                f"the entropy of their tokens is {now:.3g} nats, {was:.3g} in the batches before (spread {spread:.2g})",
                f"其 token 熵为 {now:.3g} 奈特，此前批次为 {was:.3g}（离散度 {spread:.2g}）",
            ),
        ),
        Text(
            "look at the text of these batches, leave it out, and go back to a checkpoint from before them",
            "检查这些批次的文本并剔除，回到此前的检查点",
        ),
        {},
        (Text("a source of another language or of code: shuffle it in", "另一种语言或代码的来源：应打散混入"),),
        step,
        Chart(SIGNAL, one),
    )


RULE = Rule(
    "odd_batches",
    Text("several batches in a row whose tokens are unlike all others", "连续几个批次的 token 分布异常"),
    (SIGNAL,),
    f"{IN_A_ROW} in a row whose entropy is {SIGMAS:g} standard deviations and {LEAST:.0%} from the running median",
    "shuffled batches are draws from one distribution; the spread is their own",
    "one histogram of the batch a step",
    Severity.CRITICAL,
    check,
    frozenset({"divergence", "exploding_gradients", "nonfinite", "oscillation", "repeated_samples", "spike"}),
)
