"""Rotary angles lose their precision far from the start."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "probe/far"
LEAST = {"fp32": 1e-3}
HALF = 5e-3
"""A mean over some dozen tokens moves by less than 1e-3 where half precision alone rounds differently."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    above = evidence.need(SIGNAL).first_above(LEAST.get(str(evidence.facts.get("train.precision")), HALF))
    if above is None:
        return None
    step, moved = above
    return Finding(
        "rotary_precision",
        Severity.WARNING,
        0.85,
        Text("rotary positions are imprecise at the far end of the context", "旋转位置编码在上下文末端精度不足"),
        (
            Text(
                f"at step {step} moving all positions to the end of the context changed the loss by {moved:.2g} nats a token; "
                "rotary attention sees distances alone, so that nothing may change",
                f"第 {step} 步，把所有位置平移到上下文末端使损失变化 {moved:.2g} 奈特/token；旋转位置编码只依赖距离，本不应变化",
            ),
        ),
        Text("compute the angles in float32, outside autocast", "在 autocast 之外用 float32 计算角度"),
        {},
        (
            Text(
                "positions that are not rotary, such as learned ones: then this is right", "非旋转位置编码（如可学习的）：则无误"
            ),
        ),
        step,
    )


RULE = Rule(
    "rotary_precision",
    Text("rotary angles that are rounded", "旋转角度被舍入"),
    (SIGNAL,),
    f"a loss that moves by {LEAST['fp32']:g} nats a token ({HALF:g} in half precision) with all positions moved alike",
    "rotary attention depends on distances alone (Su et al., arXiv:2104.09864); float32 angles are right to 1e-3 at 10,000",
    "two passes over a few rows a probe",
    Severity.WARNING,
    check,
)
