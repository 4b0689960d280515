"""The end of a document is never a target, so that generation will not stop."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/end_supervised"
POINTS = 3
LEAST = 0.01


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL, POINTS).finite
    share = float(one.values.mean())
    if share >= LEAST:
        return None
    return Finding(
        "end_unsupervised",
        Severity.WARNING,
        0.95,
        Text("the end of a document is never a target: generation will not stop", "文档结尾从不参与监督：生成将不会停止"),
        (
            Text(
                f"of the ends of documents in {len(one)} batches, {share:.1%} are supervised",
                f"{len(one)} 个批次里的文档结尾只有 {share:.1%} 参与监督",
            ),
        ),
        Text(
            "give padding a token of its own, or mask by position and not by token",
            "为填充使用独立的 token，或按位置而非 token 屏蔽",
        ),
        {},
        (),
        int(one.steps[0]),
    )


RULE = Rule(
    "end_unsupervised",
    Text("an end-of-document token that is masked out of the loss", "文档结束符被排除在损失之外"),
    (SIGNAL,),
    f"below {LEAST:.0%} of those in {POINTS} batches or more",
    "a definition: what is never a target is never predicted",
    "one comparison of the batch a step",
    Severity.WARNING,
    check,
)
