"""Input and output embedding have come apart."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "weights/tied_difference"


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    apart = one.values > 0
    if not apart.any():
        return None
    return Finding(
        "untied_embeddings",
        Severity.CRITICAL,
        0.97,
        Text("input and output embedding are to be one, and differ", "输入与输出嵌入应共享，却已不同"),
        (
            Text(
                f"they differ by up to {one.values[-1]:.2g} at step {one.steps[-1]}; a checkpoint keeps one of them only",
                f"第 {one.steps[-1]} 步最多相差 {one.values[-1]:.2g}；检查点只保存其中之一",
            ),
        ),
        Text("tie them again after what wraps or converts the model", "在封装或转换模型之后重新绑定"),
        {},
        (),
        int(one.steps[apart.argmax()]),
    )


RULE = Rule(
    "untied_embeddings",
    Text("tied embeddings that have come apart", "共享的嵌入被拆开"),
    (SIGNAL,),
    "any difference",
    "a definition",
    "no more than the copies of weights that other rules ask for",
    Severity.CRITICAL,
    check,
)
