"""A document in a packed sample sees the one before it."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/document"
LEAST = 1e-3


def check(evidence: Evidence, found: Found) -> Finding | None:
    above = evidence.need(SIGNAL).first_above(LEAST)
    if above is None:
        return None
    step, moved = above
    return Finding(
        "document_leak",
        Severity.WARNING,
        0.97,
        Text(
            "documents in one sample see each other, although data.document_mask is on",
            "data.document_mask 已开启，同一样本中的文档却互相可见",
        ),
        (
            Text(
                f"at step {step} other tokens in the first document moved the loss of the second by {moved:.2g} nats a token",
                f"第 {step} 步，改变第一篇文档的 token 使第二篇的损失变化 {moved:.2g} 奈特/token",
            ),
        ),
        Text(
            "pass the documents' mask to attention, and begin positions anew with each",
            "把文档掩码传给注意力，并让位置逐文档重新计数",
        ),
        {},
        (),
        step,
    )


RULE = Rule(
    "document_leak",
    Text("packed documents that attend to each other", "打包的文档互相可见"),
    (SIGNAL,),
    f"{LEAST:g} nats a token, where the recipe wants them apart",
    "a definition; the order of sums moves a mean loss by less than 1e-4",
    "two passes over a few rows a probe",
    Severity.WARNING,
    check,
)
