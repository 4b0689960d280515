"""How a training software implements a step, as far as memory and time depend on it. Facts of its code, nothing fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from danlu.errors import UserError


@dataclass(frozen=True)
class Engine:
    """One implementation. Widths are bytes an element; the defaults are danlu's torch engine."""

    name: str
    flash_attention: bool = True
    """The scores are never stored; otherwise they, the softmax's output and the dropout's are."""
    dropout: bool = False
    """Masks of one byte after attention, after the MLP and on the scores."""
    norm_input: int = 4
    """Width in which a norm keeps its input; 4 where it is cast to FP32 first."""
    norm_extra: int = 0
    """Further bytes per hidden element that a norm keeps (its normalised value before the weight)."""
    rotary_extra: int = 0
    """Bytes per query and key element that the rotation keeps."""
    repeats_kv: bool = False
    """Keys and values are copied to every query head before attention."""
    mlp_tensors: int = 4
    """Tensors of width ffn that a gated MLP keeps: gate, up, activated gate, product."""
    fused: bool = False
    """Norms, activations and residual sums are fused kernels even without compilation."""
    selective: str = "elementwise"
    """What selective recompute makes anew: "scores" (the attention core), "elementwise" (all but matrix products and
    attention) or "alternate" (that, and every second matrix product)."""
    logits: tuple[int, ...] = (2, 4, 4)
    """Widths of the copies of the logits that are alive at the peak; empty: the loss is made a few rows at a time."""
    weight: int = 4
    """Bytes of a weight in mixed precision; below 4 there is an FP32 master copy."""
    gradient: int = 4
    """Bytes of a gradient in mixed precision."""
    gradient_temporary: int = 0
    """Bytes of a weight's fresh gradient before it is added to the kept one."""
    half_copy: bool = False
    """Autocast keeps a 16-bit copy of FP32 weights from forward to backward."""
    overlaps_gradients: bool = True
    """Gradient reduction runs beside the last micro-batch's backward pass."""
    split: str = "balanced"
    """Layers over pipeline stages: "even", "balanced" (the head counted by its parameters) or "ends" (embedding and head count
    as one layer each)."""
    scatters_pipeline: bool = False
    """Tensor ranks send a slice each to the next stage, instead of the whole tensor each."""
    gradient_width_sent: int = 4
    """Bytes of a gradient on the wire."""


DANLU = Engine("danlu", repeats_kv=True, half_copy=True, logits=())
MEGATRON = Engine(
    "megatron",
    flash_attention=False,
    dropout=True,
    norm_input=2,
    fused=True,
    selective="scores",
    logits=(2, 4, 4),
    weight=2,
    gradient=2,
    overlaps_gradients=False,
    split="even",
    scatters_pipeline=True,
    gradient_width_sent=2,
)
TORCHTITAN = Engine("torchtitan", selective="alternate", split="ends", repeats_kv=True, norm_extra=4, logits=(2, 4, 4))
NANOTRON = Engine("nanotron", norm_input=2, fused=True, logits=(2, 4, 4), weight=2, gradient_temporary=2)
LITGPT = Engine("litgpt", norm_extra=4, split="even", rotary_extra=2, logits=(2, 4))

ENGINES = {each.name: each for each in (DANLU, MEGATRON, TORCHTITAN, NANOTRON, LITGPT)}


@cache
def engine(name: str) -> Engine:
    """An engine by its name. UserError: unknown."""
    if name not in ENGINES:
        raise UserError(f"engine: {name!r} is unknown; give one of {', '.join(sorted(ENGINES))}")
    return ENGINES[name]


def compiled(one: Engine) -> Engine:
    """The same after compilation: norms, rotation and activation are single kernels that recompute what is cheap."""
    return replace(one, fused=True, norm_extra=0, norm_input=2, mlp_tensors=3, rotary_extra=0)
