"""The weights hold bfloat16 values, where the recipe keeps float32."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "weights/bf16_share"
SHARE = 0.5


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    share = float(one.values[-1])
    if share < SHARE:
        return None
    return Finding(
        "rounded_weights",
        Severity.WARNING,
        0.95,
        Text("the weights are rounded to bfloat16: small updates are lost", "权重被舍入为 bfloat16：小的更新会丢失"),
        (
            Text(
                f"{share:.0%} of the weights that moved are numbers that bfloat16 holds exactly; by chance it is 1 in 65,536",
                f"变化过的权重中有 {share:.0%} 恰好能被 bfloat16 精确表示；随机情况下为 1/65536",
            ),
        ),
        Text(
            "keep float32 master weights, and cast copies for the matrix products", "保留 float32 主权重，仅在矩阵乘法时转换副本"
        ),
        {},
        (),
        int(one.steps[int((one.values >= SHARE).argmax())]),
    )


RULE = Rule(
    "rounded_weights",
    Text("weights that are kept in half precision", "权重以半精度保存"),
    (SIGNAL,),
    f"{SHARE:.0%} of the weights that moved",
    "an update below half an ulp does nothing; a bfloat16 ulp is 2^-8 of a weight, and usual updates are 1e-3 of it",
    "one copy of 256 weights a parameter from the device a look",
    Severity.WARNING,
    check,
    frozenset({"unmoved_parameters", "dead_layers", "plateau", "slow_descent", "learning_rate_too_low"}),
)
