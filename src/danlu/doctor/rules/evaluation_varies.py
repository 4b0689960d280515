"""Two evaluations of one batch differ: something random is active in evaluation."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/again"
LEAST = 1e-3


def check(evidence: Evidence, found: Found) -> Finding | None:
    above = evidence.need(SIGNAL).first_above(LEAST)
    if above is None:
        return None
    step, difference = above
    return Finding(
        "evaluation_varies",
        Severity.WARNING,
        0.95,
        Text("two evaluations of one batch differ", "对同一批次的两次评估结果不同"),
        (
            Text(
                f"at step {step} their losses differ by {difference:.2g} nats a token",
                f"第 {step} 步，两次损失相差 {difference:.2g} 奈特/token",
            ),
        ),
        Text("switch dropout off in evaluation (eval mode)", "评估时关闭 dropout（eval 模式）"),
        {},
        (Text("kernels that are not deterministic: they differ by less than 1e-4", "非确定性算子：差异小于 1e-4"),),
        step,
    )


RULE = Rule(
    "evaluation_varies",
    Text("an evaluation that draws at random", "评估中存在随机性"),
    (SIGNAL,),
    f"{LEAST:g} nats a token between two passes over the same rows",
    "the order of sums in any precision moves a mean loss by less than 1e-4",
    "two passes over a few rows a probe",
    Severity.WARNING,
    check,
    frozenset({"document_leak", "future_leak", "label_offset", "loss_mismatch", "positions_unused", "rotary_precision"}),
)
