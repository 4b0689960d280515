"""The model is blind to positions."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/unplaced"


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    if (one.values != 0).any():
        return None
    return Finding(
        "positions_unused",
        Severity.WARNING,
        0.95,
        Text("the model does not use positions", "模型没有使用位置信息"),
        (
            Text(
                f"its loss is the same to the last bit with all positions 0, in {len(one)} probes",
                f"在 {len(one)} 次探测中，把所有位置置为 0 后损失逐位相同",
            ),
        ),
        Text("apply the rotary embedding to queries and keys", "对查询和键应用旋转位置编码"),
        {},
        (),
        int(one.steps[0]),
    )


RULE = Rule(
    "positions_unused",
    Text("positions that reach no layer", "位置信息没有进入任何一层"),
    (SIGNAL,),
    "equal to the last bit in every probe",
    "a definition: what is used changes at least the rounding",
    "two passes over a few rows a probe",
    Severity.WARNING,
    check,
    frozenset({"plateau"}),
)
