"""Steps wait for their batch."""

from __future__ import annotations

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.waits import WARN, share_of_step

ON_CPU = 0.5
"""Where the loader and the model share the same cores, waiting is contention until it is most of the step."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    share, since = share_of_step(evidence, names.DATA_WAIT)
    if share < WARN:
        return None
    on_cpu = evidence.on_cpu
    return Finding(
        "data_bound",
        Severity.INFO if on_cpu and share < ON_CPU else Severity.WARNING,
        0.85,
        Text(f"{share:.0%} of a step is waiting for data", f"每步有 {share:.0%} 的时间在等数据"),
        (
            Text(
                f"{names.DATA_WAIT} is {share:.1%} of {names.STEP} since step {since}",
                f"自第 {since} 步起 {names.DATA_WAIT} 占 {names.STEP} 的 {share:.1%}",
            ),
        ),
        Text("load with more workers, and keep the shards on a local disk", "增加加载进程，并把分片放在本地磁盘上"),
        {"data.workers": int(evidence.number("data.workers") or 0) + 2},
        (
            Text("a slow disk: more workers would not help", "磁盘慢：增加加载进程也没有用"),
            *([Text("training and loading share the CPU's cores here", "此处训练与加载共用 CPU 核心")] if on_cpu else []),
        ),
        since,
        Chart(names.DATA_WAIT, evidence.signals[names.DATA_WAIT]),
    )


RULE = Rule(
    "data_bound",
    Text("steps that wait for data", "训练步在等数据"),
    (names.DATA_WAIT, names.STEP),
    f"{WARN:.0%} of a step in the median of the last 100; on a CPU information only below {ON_CPU:.0%}",
    "a loader that keeps up waits near zero; a tenth of the time is worth a change",
    "one median",
    Severity.WARNING,
    check,
    frozenset({"throughput_drop"}),
)
