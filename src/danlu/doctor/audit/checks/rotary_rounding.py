"""At the longest position the rotary angles in float32 are no longer those of float64."""

from __future__ import annotations

import numpy as np

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape

RADIANS = 0.03


def angle_error(shape: ModelShape, position: int) -> float:
    """Largest error, in radians, of float32(position) x float32(frequency), as both engines compute it, against float64."""
    exact, _ = frequencies(shape)
    places = np.arange(max(0, position - 64), position)[:, None]
    rounded = places.astype(np.float32) * exact.astype(np.float32)
    return float(np.abs(rounded.astype(np.float64) - places * exact).max())


def check(material: Material) -> Finding | None:
    shape = material.need_shape()
    longest = max(shape.max_sequence_length, material.recipe.data.sequence_length)
    error = angle_error(shape, longest)
    if error < RADIANS:
        return None
    return Finding(
        "rotary_rounding",
        Severity.WARNING,
        0.8,
        Text("rotary positions lose their precision at the longest position", "旋转位置编码在最大位置处精度不足"),
        (
            Text(
                f"at position {longest:,} an angle in float32 is off by {error:.2g} radians from float64",
                f"位置 {longest:,} 处 float32 角度与 float64 相差 {error:.2g} 弧度",
            ),
        ),
        Text("lower model.max_sequence_length to what is needed", "把 model.max_sequence_length 降到实际所需"),
    )


AUDIT = Audit(
    "rotary_rounding",
    Text("rotary angles that float32 cannot hold at the longest position", "最大位置处 float32 无法表示的旋转角度"),
    "the shape",
    f"{RADIANS:g} radians",
    "computed against float64; at 131,072 positions, which published models have, it is below 0.01",
    Severity.WARNING,
    check,
    at_start=True,
)
