"""The maximal update parametrisation (µP; Yang et al. 2022, Tensor Programs V, arXiv:2203.03466): one rate for all widths.

Only initial values and learning rates depend on the width, and no forward pass does, so that a model is an ordinary one
wherever it is exported to. A factor that the paper puts into the forward pass is in a weight beside it instead: Adam's steps do
not see the size of a gradient, so multiplying an output by c is starting its weight c times as large and moving it c times as far
(the paper's appendix J).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from danlu.model.shape import ModelShape

_MATRICES = tuple(f"self_attn.{letter}_proj.weight" for letter in "qkvo") + tuple(
    f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")
)


class Mup(BaseModel):
    """Which width the learning rate is meant for; a model of that width is trained as if nothing were said."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    base_hidden_size: int = Field(
        gt=0, description="hidden_size of the model that train.optimizer.learning_rate was found on, in the same proportions."
    )
    base_head_size: int | None = Field(
        None, gt=0, description="Its dimensions of one head; null: as here, so that a wider model has more heads."
    )


class Multipliers(NamedTuple):
    """What a tensor's standard initial value is multiplied by, and what the learning rate is."""

    initial: float
    learning_rate: float


def multipliers(shape: ModelShape, name: str, mup: Mup | None) -> Multipliers:
    """The two factors of the tensor of that Hugging Face name; (1, 1) without µP, and at the base width.

    Table 3 of the paper, Adam's column, relative to the base; n is the width / the base's. The standard initial value is the
    one of the same width, which shrinks as n^-1/2:

        embedding                        variance 1        rate 1
        matrices of the layers           variance 1/n      rate 1/n
        head                             variance 1/n^2    rate 1/n
        norms and biases                 as they are       rate 1

    Tied, embedding and head cannot both have theirs; the paper's factor 1/n on the logits (table 8) is then in the last norm.
    Attention has q k / d in place of q k / sqrt(d) (section 5); where a wider model has larger heads, the difference is in the
    queries: their projection, or their norm where they have one.
    """
    if mup is None:
        return Multipliers(1.0, 1.0)
    wider = shape.hidden_size / mup.base_hidden_size
    queries = math.sqrt((mup.base_head_size or shape.head_dim) / shape.head_dim)
    in_queries = "self_attn.q_norm.weight" if shape.qk_norm else "self_attn.q_proj."
    factor = queries if in_queries in name else 1.0
    if name == "model.embed_tokens.weight" or (name == "lm_head.weight" and shape.tied_embeddings):
        return Multipliers(math.sqrt(wider), 1.0)
    if name == "lm_head.weight":
        return Multipliers(1 / math.sqrt(wider), 1 / wider)
    if name == "model.norm.weight" and shape.tied_embeddings:
        return Multipliers(1 / wider, 1 / wider)
    if name.endswith(_MATRICES):
        return Multipliers(factor, factor / wider)
    return Multipliers(factor, factor)
