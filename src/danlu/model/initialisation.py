"""The distribution that every tensor starts from."""

from __future__ import annotations

import math
from typing import NamedTuple

from danlu.model.mup import Mup, multipliers
from danlu.model.shape import ModelShape

_RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_MATRICES = (
    "embed_tokens.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "lm_head.weight",
)


class Initial(NamedTuple):
    """A normal distribution; a standard deviation of 0 means the constant `mean`."""

    mean: float
    standard_deviation: float


def initial(shape: ModelShape, name: str, mup: Mup | None = None) -> Initial:
    """How the tensor of that Hugging Face name starts: matrices normal, norms 1, biases 0. ValueError for a name no family has.

    Matrices and embeddings have standard deviation sqrt(2 / (5 hidden_size)): Xavier's for an MLP of four times the width, used
    for all ("SmallInit", Nguyen and Salazar, Transformers without Tears, arXiv:1910.05895; as in GPT-NeoX-20B, arXiv:2204.06745).
    It is 0.02, GPT-2's constant, at hidden size 1000, and unlike the constant keeps the spread of the logits, hence the first
    loss, the same at every width. The two projections into the residual stream are divided by sqrt(2 layers), so that the
    stream's variance does not grow with depth (GPT-2, Radford et al. 2019, section 2.3). With `mup`, times its factor.
    """
    standard, factor = _standard(shape, name), multipliers(shape, name, mup).initial
    return Initial(standard.mean * factor, standard.standard_deviation * factor)


def _standard(shape: ModelShape, name: str) -> Initial:
    if name.endswith("norm.weight"):
        return Initial(1.0, 0.0)
    if name.endswith("_proj.bias"):
        return Initial(0.0, 0.0)
    small = math.sqrt(2 / (5 * shape.hidden_size))
    if name.endswith(_RESIDUAL):
        return Initial(0.0, small / math.sqrt(2 * shape.layers))
    if name.endswith(_MATRICES):
        return Initial(0.0, small)
    raise ValueError(f"no initial value is known for a tensor named {name!r}")
