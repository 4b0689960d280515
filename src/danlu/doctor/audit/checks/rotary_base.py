"""The slowest rotary wave is shorter than a sample, so that far positions look like near ones."""

from __future__ import annotations

import math

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.model.rope import frequencies


def check(material: Material) -> Finding | None:
    shape, length = material.need_shape(), material.recipe.data.sequence_length
    longest = 2 * math.pi / float(frequencies(shape)[0].min())
    if longest >= length:
        return None
    pairs = shape.head_dim // 2
    base = (length / (2 * math.pi)) ** (pairs / (pairs - 1)) if pairs > 1 else None
    return Finding(
        "rotary_base",
        Severity.WARNING,
        0.85,
        Text("rope_theta is too small for the sequence length", "rope_theta 对该序列长度过小"),
        (
            Text(
                f"the slowest pair of dimensions turns once in {longest:,.0f} positions, and a sample has {length:,}: no "
                "dimension tells all positions apart",
                f"最慢的一对维度每 {longest:,.0f} 个位置转一圈，而样本长 {length:,}：没有维度能区分所有位置",
            ),
        ),
        Text("raise model.rope_theta", "增大 model.rope_theta"),
        {} if base is None or shape.rope_scaling is not None else {"model.rope_theta": float(f"{4 * base:.1g}")},
    )


AUDIT = Audit(
    "rotary_base",
    Text("a rotary base too small for the sequence length", "旋转位置编码的底数过小"),
    "the shape",
    "a longest wavelength below data.sequence_length",
    "Su et al., arXiv:2104.09864: pair i turns by theta^(-2 i / head size) a position",
    Severity.WARNING,
    check,
    at_start=True,
)
