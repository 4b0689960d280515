"""Steps wait for other processes."""

from __future__ import annotations

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.waits import WARN, share_of_step


def check(evidence: Evidence, found: Found) -> Finding | None:
    share, since = share_of_step(evidence, names.COMMUNICATION)
    if share < 2 * WARN:
        return None
    return Finding(
        "communication_bound",
        Severity.INFO if evidence.on_cpu else Severity.WARNING,  # processes that share cores wait for them in turn
        0.85,
        Text(f"{share:.0%} of a step is communication that nothing hides", f"每步有 {share:.0%} 的时间是无法掩盖的通信"),
        (
            Text(
                f"{names.COMMUNICATION} is {share:.1%} of {names.STEP} since step {since}",
                f"自第 {since} 步起 {names.COMMUNICATION} 占 {names.STEP} 的 {share:.1%}",
            ),
        ),
        Text(
            "keep tensor ranks inside a node, accumulate more micro-batches, or use a lower ZeRO stage",
            "把张量并行限制在单机内，累积更多微批次，或降低 ZeRO 级别",
        ),
        {},
        (Text("one slow rank: the waits of the ranks would differ", "个别进程慢：各进程的等待会不同"),),
        since,
        Chart(names.COMMUNICATION, evidence.signals[names.COMMUNICATION]),
    )


RULE = Rule(
    "communication_bound",
    Text("steps that wait for communication", "训练步在等通信"),
    (names.COMMUNICATION, names.STEP),
    f"{2 * WARN:.0%} of a step in the median of the last 100; on a CPU information only",
    "well-tuned public runs hide all but 10 to 20 % of it",
    "one median",
    Severity.WARNING,
    check,
    frozenset({"throughput_drop"}),
)
