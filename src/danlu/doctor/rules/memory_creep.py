"""Memory rises step by step: something is kept that should be let go."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series
from danlu.watch.format import bytes_text

SIGNALS = ("memory/device_bytes", "memory/resident_bytes")
POINTS = 40
GROWTH = 0.05
RISING = 0.7
PARTS = 8
LIMIT, MAPPED = "run.resident_limit", "run.mapped_bytes"
SLACK = 256e6
"""Bytes by which caches and tables may grow beside the data that is mapped; the doctor's own reach 100 MB."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    seen = {name: one for name in SIGNALS if (one := evidence.get(name, POINTS)) is not None}
    if not seen:
        raise NotEnoughData(f"no memory signal has {POINTS} points")
    for name, one in seen.items():
        creep = creeping(one.finite)
        if creep is None:
            continue
        per_step, grown = creep
        now, last = float(one.finite.values[-1]), int(one.finite.steps[-1])
        limit, total = evidence.memory_limits.get(name), evidence.number("train.steps")
        if limit is None and name == SIGNALS[1]:
            limit = evidence.number(LIMIT)
        left = None if limit is None else max((limit - now) / per_step, 0.0)
        # Memory of a process also grows by the pages of mapped data that it has touched, which are given back in need.
        mapped = evidence.number(MAPPED) if name == SIGNALS[1] else 0.0
        beyond = mapped is not None and grown > mapped + SLACK
        in_time = left is not None and (total is None or last + left < total) and (beyond or not mapped)
        until = Text("the limit is not known", "上限未知")
        if left is not None:
            until = Text(f"it is full after {left:,.0f} more steps", f"再过 {left:,.0f} 步就会耗尽")
        worth = name == SIGNALS[0] or in_time or beyond
        return Finding(
            "memory_creep",
            Severity.CRITICAL if in_time else Severity.WARNING if worth else Severity.INFO,
            0.85 if worth else 0.4,
            Text(f"memory rises by {bytes_text(per_step)} a step", f"内存每步增加 {bytes_text(per_step)}"),
            (
                Text(
                    f"{name} grew by {bytes_text(grown)} to {bytes_text(now)} in the last "
                    f"{int(one.finite.span * 3 / 4)} steps, evenly; {until.en}",
                    f"{name} 在最近 {int(one.finite.span * 3 / 4)} 步里匀速增加 {bytes_text(grown)}，达到 "
                    f"{bytes_text(now)}；{until.zh}",
                ),
            ),
            Text(
                "look for a tensor that is kept from step to step, such as a loss that is summed without .item() or .detach()",
                "查找跨步保留的张量，例如没有 .item() 或 .detach() 就累加的损失",
            ),
            {},
            (Text("caches that fill: they level off", "缓存填充：会逐渐平稳"),),
            int(one.finite.steps[len(one.finite) // 4]),
            Chart(name, one),
        )
    return None


def creeping(one: Series) -> tuple[float, float] | None:
    """(bytes a step, bytes grown) over the last three quarters, where it rises in nearly all of PARTS parts; else None."""
    tail = one.between(one.steps[len(one) // 4], np.inf)
    edges = np.linspace(0, len(tail), PARTS + 1).astype(np.int64)
    levels = np.array([np.median(tail.values[start:stop]) for start, stop in pairwise(edges)])
    rises = np.diff(levels)
    grown = float(levels[-1] - levels[0])
    steady = (rises > 0).mean() >= RISING and rises[-2:].min() > 0.3 * grown / (PARTS - 1)
    if grown < GROWTH * levels[0] or not steady or not tail.span:
        return None
    return grown / (tail.span * (PARTS - 1) / PARTS), grown


RULE = Rule(
    "memory_creep",
    Text("memory that rises without end", "内存持续上涨"),
    (" | ".join(SIGNALS),),
    f"{GROWTH:.0%} over the last three quarters of the run, rising in {RISING:.0%} of {PARTS} parts and still at the end; of a "
    f"process's memory information only where that is less than its data and {SLACK / 1e6:g} MB, and it will not be full",
    "a cache that fills levels off; what leaks goes on",
    "eight medians",
    Severity.CRITICAL,
    check,
)
