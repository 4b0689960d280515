"""The loss falls little and along a straight line, where a descent that works is fast at first and slows down."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import MEDIAN_ERROR

POINTS = 100
STEPS = 1000
"""A shorter run is judged only once half of its planned steps are done."""
STRAIGHT = 0.8
FALLEN = 0.25
FAST = 0.8
SIGMAS = 6.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.current(names.LOSS, POINTS)
    if one is None:
        raise NotEnoughData(f"{names.LOSS} has fewer than {POINTS} points, or ends before the run")
    end = evidence.warmup_end() or 0
    last = int(one.steps[-1])
    planned = evidence.number("train.steps")
    if last < STEPS and (planned is None or last < planned / 2):
        raise NotEnoughData(f"{last} steps, neither {STEPS} nor half of the planned ones")
    finite = one.finite.between(end, last)
    if len(finite) < POINTS or one.finite.steps[0] > 0.01 * last:
        raise NotEnoughData(f"{names.LOSS} has fewer than {POINTS} points after the warm-up, or begins in the middle")
    part = max(len(finite) // 10, 5)
    middle = len(finite) // 2
    start, half, now = (float(np.median(finite.values[at : at + part])) for at in (0, middle - part // 2, len(finite) - part))
    error = MEDIAN_ERROR * finite.noise * math.sqrt(2 / part)
    first, second = start - half, half - now
    straight = min(first, second) > SIGMAS * error and second > STRAIGHT * first and now > (1 - FALLEN) * start > 0
    if not straight:
        return None
    # What fell fast at first and then hardly is no fine-tuning, whose descent may well be short and straight.
    scratch = start < FAST * float(one.finite.values[0])
    why = [
        Text(
            f"{names.LOSS} fell by {first:.4g} in the first half and by {second:.4g} in the second; a descent that "
            "works slows down",
            f"{names.LOSS} 前半程下降 {first:.4g}，后半程下降 {second:.4g}；正常的下降会逐渐变慢",
        )
    ]
    return Finding(
        "slow_descent",
        Severity.WARNING if evidence.own or scratch else Severity.INFO,
        0.6,
        Text("the loss falls slowly, along a straight line", "损失沿直线缓慢下降"),
        tuple(why),
        Text("try ten times and a tenth of the learning rate in two short runs", "用十倍和十分之一的学习率各短跑一次"),
        {},
        (
            Text(
                "a learning rate that is too low: nothing is unstable, and updates are tiny", "学习率过低：一切平稳而更新量极小"
            ),
            Text("one that is too high: it spikes, and gets better as the rate decays", "学习率过高：出现尖峰，随衰减而好转"),
        ),
        int(finite.steps[middle]),
        Chart(names.LOSS, one),
    )


RULE = Rule(
    "slow_descent",
    Text("the loss falls along a straight line", "损失沿直线缓慢下降"),
    (names.LOSS,),
    f"after the warm-up the second half falls {STRAIGHT:.0%} as much as the first, both by {SIGMAS:g} standard "
    f"errors, and less than {FALLEN:.0%} "
    f"in all",
    "loss curves of language models are power laws in the step, whose second half falls far less than the first",
    "three medians",
    Severity.WARNING,
    check,
)
