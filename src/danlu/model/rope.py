"""Rotary position frequencies with their scaling variants (Su et al., RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from danlu.errors import UserError
from danlu.model.shape import ModelShape, RopeScaling

Frequencies = NDArray[np.float64]


def frequencies(shape: ModelShape) -> tuple[Frequencies, float]:
    """Inverse frequencies in radians a position, shape (head_dim / 2,), and the factor that cos and sin are multiplied by.

    Dimension pair i turns by theta^(-2i / head_dim) a position; which two dimensions make a pair is the family's.
    UserError if a scaling lacks a setting or contradicts itself.
    """
    check_scaling(shape.rope_scaling)
    exponents = np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim
    inverse = shape.rope_theta**-exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return inverse, 1.0
    if scaling.kind == "linear":
        return inverse / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(inverse, scaling), 1.0
    return _yarn(inverse, scaling, shape), yarn_attention_factor(scaling)


def check_scaling(scaling: RopeScaling | None) -> None:
    """UserError naming the field if a scaling lacks a setting or contradicts itself."""
    if scaling is None or scaling.kind == "linear":
        return
    if scaling.original_max_sequence_length is None:
        raise UserError(
            "model.rope_scaling.original_max_sequence_length is missing; "
            f"kind {scaling.kind} needs the length, in tokens, before scaling"
        )
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if scaling.kind == "llama3" and high <= low:
        raise UserError(f"model.rope_scaling: high_frequency_factor ({high:g}) must be above low_frequency_factor ({low:g})")
    fast, slow = scaling.beta_fast, scaling.beta_slow
    if scaling.kind == "yarn" and fast < slow:
        raise UserError(f"model.rope_scaling: beta_fast ({fast:g}) must not be below beta_slow ({slow:g})")


def yarn_attention_factor(scaling: RopeScaling) -> float:
    """The factor on cos and sin: 0.1 ln(factor) + 1 unless given (YaRN, arXiv:2309.00071, equation 22)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _llama3(inverse: Frequencies, scaling: RopeScaling) -> Frequencies:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between (Llama 3.1's reference `apply_scaling`)."""
    # How often the wave fits into the original length decides the band; the blend is 0 at low and 1 at high.
    assert scaling.original_max_sequence_length is not None  # check_scaling saw to it
    turns = scaling.original_max_sequence_length * inverse / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * inverse + (1 - keep) * inverse / scaling.factor


def _yarn(inverse: Frequencies, scaling: RopeScaling, shape: ModelShape) -> Frequencies:
    """Fast dimensions kept, slow ones divided by the factor, a ramp between ("NTK by parts", YaRN, section 3.2)."""

    assert scaling.original_max_sequence_length is not None  # check_scaling saw to it
    length = scaling.original_max_sequence_length

    def pair_turning(rotations: float) -> float:
        """The (fractional) dimension pair that turns so many times within the original length."""
        return shape.head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

    # Clamping to head_dim - 1, though there are only head_dim / 2 pairs, is the reference's; checkpoints are trained with it.
    first = max(math.floor(pair_turning(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_turning(scaling.beta_slow)), shape.head_dim - 1)
    width = last - first if last != first else 0.001
    stretch = np.clip((np.arange(shape.head_dim // 2, dtype=np.float64) - first) / width, 0.0, 1.0)
    return (1 - stretch) * inverse + stretch * inverse / scaling.factor
