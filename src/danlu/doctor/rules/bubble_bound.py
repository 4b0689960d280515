"""Pipeline stages idle in the bubble."""

from __future__ import annotations

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.waits import WARN, share_of_step


def bubble(evidence: Evidence) -> str:
    """What the schedule alone would leave idle, where the layout is known."""
    stages, samples = evidence.number("parallel.pipeline"), evidence.number("train.global_batch")
    micro = evidence.number("memory.micro_batch")
    if not stages or not samples or not micro:
        return ""
    batches = samples / micro / (evidence.number("parallel.data") or 1)
    return f"; (p - 1) / (m + p - 1) = {(stages - 1) / (batches + stages - 1):.1%}"


def check(evidence: Evidence, found: Found) -> Finding | None:
    share, since = share_of_step(evidence, names.IDLE)
    if share < 2 * WARN:
        return None
    return Finding(
        "bubble_bound",
        Severity.WARNING,
        0.85,
        Text(f"pipeline stages idle for {share:.0%} of a step", f"流水线各级有 {share:.0%} 的时间空闲"),
        (
            Text(
                f"{names.IDLE} is {share:.1%} of {names.STEP} since step {since}" + bubble(evidence),
                f"自第 {since} 步起 {names.IDLE} 占 {names.STEP} 的 {share:.1%}" + bubble(evidence),
            ),
        ),
        Text("use more and smaller micro-batches, or the interleaved schedule", "使用更多更小的微批次，或交错调度"),
        {"parallel.schedule": "interleaved"} if evidence.facts.get("parallel.schedule") == "1f1b" else {},
        (
            Text(
                "stages of unequal size: the idle share would exceed that of the schedule",
                "各级大小不均：空闲比例会超过调度本身的气泡",
            ),
        ),
        since,
        Chart(names.IDLE, evidence.signals[names.IDLE]),
    )


RULE = Rule(
    "bubble_bound",
    Text("pipeline stages that idle", "流水线空闲"),
    (names.IDLE, names.STEP),
    f"{2 * WARN:.0%} of a step in the median of the last 100",
    "the bubble of p stages and m micro-batches is (p - 1) / (m + p - 1) of a step (GPipe, arXiv:1811.06965)",
    "one median",
    Severity.WARNING,
    check,
    frozenset({"throughput_drop"}),
)
