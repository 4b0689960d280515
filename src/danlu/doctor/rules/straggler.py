"""One rank is slow and all others wait for it: the one that waits least."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import SIGMA

POINTS = 20
RANKS = 3
SHARE = 0.02
SIGMAS = 6.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    ranks = evidence.matching("time/communication@", "", POINTS)
    if len(ranks) < RANKS:
        raise NotEnoughData(f"the waits of {RANKS} ranks over {POINTS} points are needed")
    step = float(np.median(evidence.need(names.STEP, POINTS).finite.values[-POINTS:]))
    waits = {rank: float(np.median(one.finite.values[-POINTS:])) for rank, one in ranks.items()}
    slow = min(waits, key=lambda rank: waits[rank])
    others = np.array([wait for rank, wait in waits.items() if rank != slow])
    usual = float(np.median(others))
    spread = SIGMA * float(np.median(np.abs(others - usual)))
    lost = usual - waits[slow]
    if lost < SHARE * step or lost < SIGMAS * spread or lost < usual - float(others.min()) + SHARE * step / 2:
        return None
    return Finding(
        "straggler",
        Severity.WARNING,
        0.9,
        Text(f"rank {slow} is slow and the others wait for it", f"进程 {slow} 较慢，其他进程都在等它"),
        (
            Text(
                f"rank {slow} waits {waits[slow]:.3g} s a step, the others {usual:.3g} s (spread {spread:.2g} s): "
                f"{lost / step:.1%} of a step is lost",
                f"进程 {slow} 每步等待 {waits[slow]:.3g} 秒，其他进程为 {usual:.3g} 秒（离散 {spread:.2g} 秒）：每步"
                f"损失 {lost / step:.1%}",
            ),
        ),
        Text(
            f"look at the device of rank {slow}: clock, temperature, other load; move the run off it",
            f"检查进程 {slow} 的设备：频率、温度、其他负载；把训练移开",
        ),
        {},
        (
            Text(
                "a pipeline stage with more layers: it would be the same rank in every run",
                "流水线某一级层数更多：每次运行都会是同一进程",
            ),
        ),
        int(ranks[slow].finite.steps[-POINTS]),
        Chart(f"time/communication@{slow}", ranks[slow]),
    )


RULE = Rule(
    "straggler",
    Text("one rank that all others wait for", "拖慢所有进程的那一个"),
    ("time/communication@N", names.STEP),
    f"waits less than the median of the others by {SHARE:.0%} of a step and {SIGMAS:g} times their spread",
    "in a synchronous step the slowest waits least; the spread is that of the other ranks",
    "one median a rank",
    Severity.WARNING,
    check,
    frozenset({"throughput_drop", "communication_bound"}),
)
