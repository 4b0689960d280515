"""The learning rate is not the one of the schedule."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

APPLIED = "optimizer/learning_rate"
RELATIVE = 1e-3


def check(evidence: Evidence, found: Found) -> Finding | None:
    peak, steps = evidence.number(names.RATE_SETTING), evidence.number("train.steps")
    warmup, final = evidence.number("train.schedule.warmup_steps"), evidence.number("train.schedule.final_ratio")
    shape = evidence.facts.get("train.schedule.name")
    if not evidence.own or peak is None or steps is None or warmup is None or final is None or shape is None:
        raise NotEnoughData("the schedule is not known")
    factor = evidence.number("run.rate_factor")
    since = max(evidence.resumes, default=0) if factor not in (None, 1.0) else 0
    for name in (names.RATE, APPLIED):
        one = evidence.get(name)
        if one is None:
            continue
        part = one.finite.between(since, np.inf)
        if name == APPLIED:  # a step that was skipped leaves the rate of the one before
            loss = evidence.get(names.LOSS)
            made = np.isin(part.steps, loss.finite.steps) if loss is not None else np.ones(len(part), bool)
            part = Series(part.steps[made], part.values[made])
        wanted = (factor or 1.0) * closed_form(part.steps - 1, str(shape), peak, steps, warmup, final)
        wrong = np.abs(part.values - wanted) > RELATIVE * np.maximum(wanted, 1e-30)
        if not wrong.any():
            continue
        at = int(wrong.argmax())
        return Finding(
            "learning_rate_schedule",
            Severity.WARNING,
            0.97,
            Text("the learning rate is not that of the schedule", "学习率与调度不符"),
            (
                Text(
                    f"{name} is {part.values[at]:.4g} at step {part.steps[at]}; the schedule has {wanted[at]:.4g} there "
                    f"({wrong.mean():.0%} of the points differ)",
                    f"第 {part.steps[at]} 步 {name} 为 {part.values[at]:.4g}；按调度应为 {wanted[at]:.4g}"
                    f"（{wrong.mean():.0%} 的点不符）",
                ),
            ),
            Text(
                "compute it from the step alone, once a step, and not from how often the scheduler was called",
                "只由步数计算，每步一次，不依赖调度器被调用的次数",
            ),
            {},
            (),
            int(part.steps[at]),
            Chart(name, one),
        )
    if evidence.get(names.RATE) is None:
        raise NotEnoughData(f"{names.RATE} is not recorded")
    return None


def closed_form(at: np.ndarray, shape: str, peak: float, steps: float, warmup: float, final: float) -> np.ndarray:
    """The rate of steps counted from 0. Written a second time on purpose: what shares the trainer's code cannot check it."""
    top = max(warmup - 1, 0)
    progress = np.clip((at - top) / max(steps - 1 - top, 1), 0, 1)
    left = {"cosine": (1 + np.cos(math.pi * progress)) / 2, "linear": 1 - progress}.get(shape, np.ones_like(progress))
    decayed = peak * (final + (1 - final) * left) if shape != "constant" else peak * np.ones_like(progress)
    return np.where(at < warmup, peak * (at + 1) / max(warmup, 1), decayed)


RULE = Rule(
    "learning_rate_schedule",
    Text("a learning rate that is not the schedule's, of the loop or in the optimizer", "学习率与调度不符"),
    (f"{names.RATE} | {APPLIED}", "settings"),
    f"{RELATIVE:.1%} at any step, across resumes",
    "a definition: the schedule is a function of the step",
    "one formula a diagnosis",
    Severity.WARNING,
    check,
    frozenset(
        {
            "learning_rate_too_high",
            "learning_rate_too_low",
            "warmup_too_short",
            "resume_step",
            "spike",
            "plateau",
            "slow_descent",
            "divergence",
            "not_learning",
            "oscillation",
            "exploding_gradients",
        }
    ),
)
