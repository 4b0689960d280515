"""Steps take longer than they did."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import SIGMA

POINTS = 40
DROP = 0.05
SIGMAS = 4.0
TAIL = 20


def check(evidence: Evidence, found: Found) -> Finding | None:
    speed, step = evidence.get(names.SPEED, POINTS), evidence.get(names.STEP, POINTS)
    if speed is None and step is None:
        raise NotEnoughData(f"neither {names.SPEED} nor {names.STEP} has {POINTS} points")
    name, one = (names.SPEED, speed.finite) if speed is not None else (names.STEP, step.finite if step else None)
    if one is None:
        return None
    values = one.values if name == names.SPEED else 1 / np.maximum(one.values, 1e-12)
    tail = max(TAIL, len(values) // 20)
    usual, now = float(np.median(values[: max(len(values) - tail, 1)])), float(np.median(values[-tail:]))
    if usual <= 0:
        raise NotEnoughData(f"{name} is not positive")
    spread = SIGMA * float(np.median(np.abs(values[:-tail] - usual)))
    drop = 1 - now / usual
    if drop < DROP or usual - now < SIGMAS * spread:
        return None
    comparable = evidence.own and not evidence.on_cpu
    since = int(one.steps[max(len(values) - tail, 0)])
    slow = np.flatnonzero(values > usual - 0.5 * (usual - now))
    if len(slow):
        since = int(one.steps[min(slow[-1] + 1, len(one) - 1)])
    return Finding(
        "throughput_drop",
        Severity.WARNING if comparable else Severity.INFO,
        0.8 if comparable else 0.4,
        Text(f"training is {drop:.0%} slower since step {since}", f"自第 {since} 步起训练变慢 {drop:.0%}"),
        (
            Text(
                f"{name} says {drop:.1%} less work a second in the last {tail} points than before, where it varied "
                f"by {spread / usual:.1%}",
                f"{name} 显示最近 {tail} 个点每秒完成的工作少了 {drop:.1%}，此前的波动为 {spread / usual:.1%}",
            ),
        ),
        Text(
            "compare the ranks' waits, clocks and temperatures; look what else runs on the machines",
            "比较各进程的等待、频率和温度；看看机器上还有什么在运行",
        ),
        {},
        (
            Text(
                "steps that do more (longer sequences, larger batches): not known from this log",
                "每步工作量变大（序列更长、批量更大）：该日志无法判断",
            ),
        )
        if not evidence.own
        else (Text("validations and checkpoints: they are not part of a step's time", "验证和检查点：不计入每步时间"),),
        since,
        Chart(name, one),
    )


RULE = Rule(
    "throughput_drop",
    Text("training that has become slower", "训练变慢"),
    (f"{names.SPEED} | {names.STEP}",),
    f"{DROP:.0%} less than the median before and {SIGMAS:g} standard deviations; information only where steps may "
    "do more work, or share a CPU with other programs",
    "one slow GPU of 384 cost 5 % of a 176B run; the spread is the run's own",
    "three medians",
    Severity.WARNING,
    check,
)
