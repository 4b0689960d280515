"""How a training software implements a step, as far as memory and time depend on it.

Facts of its code, with two exceptions that are read off published rows: `gathered` of nanotron (0, 1/2 and 1 were tried), and
that Megatron of 2021 sent whole activations between pipeline stages.
"""

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
    drops_apart: bool = False
    """Adapters each have a dropout of their own, instead of one for all that read the same."""
    residual: int = 0
    """Bytes of a hidden state between layers; 0: as wide as any activation. FP32 where autocast leaves sums in FP32."""
    norm_input: int = 4
    """Width in which a norm keeps its input; 4 where it is cast to FP32 first."""
    norm_extra: int = 0
    """Further bytes per hidden element that a norm keeps (its normalised value before the weight)."""
    keeps_qkv: bool = False
    """The values are a view into the tensor of all three projections, which stays whole beside the rotated queries and keys."""
    copies_output: bool = False
    """Attention's output is laid out anew for the projection after it when a micro-batch has several samples."""
    repeats_kv: bool = False
    """Keys and values are copied to every query head before attention."""
    makes_rotary: bool = False
    """The rotation's FP32 cosines and sines are made for every micro-batch, and not once for all."""
    mlp_tensors: int = 4
    """Tensors of width ffn that a gated MLP keeps: gate, up, activated gate, product."""
    layout_copies: int = 0
    """Times that a tensor of the queries' width is copied around attention in another layout."""
    fused: bool = False
    """Norms, activations and residual sums are fused kernels even without compilation."""
    selective: str = "elementwise"
    """What selective recompute makes anew: "scores" (the attention core), "elementwise" (all but matrix products and
    attention) or "alternate" (that, and every second matrix product)."""
    gathered: float = 0.0
    """Share of the inputs of column-split matrix products that is still held as gathered from the sequence-parallel ranks."""
    logits: tuple[int, ...] = (2, 4, 4)
    """Widths of the copies of the logits that are alive at the peak; empty: the loss is made a few rows at a time."""
    splits_checkpoint: bool = True
    """Under sequence parallelism the kept input of a recomputed layer is split over the tensor ranks."""
    loss_bytes: tuple[int, int] = (18, 18)
    """Bytes that the loss reads and writes per logit, forward and backward."""
    weight: int = 4
    """Bytes of a weight in mixed precision; below 4 there is an FP32 master copy."""
    gradient: int = 4
    """Bytes of a gradient in mixed precision."""
    half_copy: bool = False
    """Autocast keeps a 16-bit copy of FP32 weights from forward to backward, one for every micro-batch under way."""
    whole_embedding_gradient: bool = False
    """Tensor ranks each make the gradient of the whole embedding, which is split only when it is reduced or used."""
    accumulation: int = 12
    """Bytes that adding a micro-batch's gradient to the kept one moves per weight; 0: the matrix product does it."""
    fully_sharded: bool = True
    """ZeRO is FSDP: weights are split at every stage between steps, gathered layer by layer beside the computation, and
    gradients wait whole for the last micro-batch. Otherwise stage 1 gathers all weights after the update."""
    gathered_width: int = 4
    """Bytes of a gathered weight under FSDP."""
    overlaps_gradients: bool = True
    """Gradient reduction runs beside the last micro-batch's backward pass."""
    bucket: float = 25e6
    """Bytes of 16-bit gradients that are reduced in one collective."""
    scatters_gradients: bool = True
    """ZeRO 1 and 2 reduce-scatter gradients; otherwise they all-reduce."""
    gathers_per_layer: int = 1
    """Collectives a layer in which ZeRO's ranks get their updated weights back."""
    overlaps_tensor: bool = False
    """Half of the backward pass's tensor-parallel communication, that of the column-split matrices, runs beside the products
    that make the gradients of their weights."""
    split: str = "balanced"
    """Layers over pipeline stages: "even", "balanced" (the head counted by its parameters) or "ends" (embedding and head count
    as one layer each)."""
    keeps_sent: bool = False
    """What a pipeline stage has sent on stays until its backward pass, and beside a gradient that arrives the one before it."""
    scatters_pipeline: bool = False
    """Tensor ranks send a slice each to the next stage, instead of the whole tensor each."""
    gradient_width_sent: int = 4
    """Bytes of a gradient on the wire."""
    reports_first_stage: bool = False
    """The memory that its benchmarks print is that of the first device, not the largest."""


DANLU = Engine(
    "danlu",
    drops_apart=True,
    residual=4,
    norm_extra=4,
    repeats_kv=True,
    makes_rotary=True,
    gathered=1.0,
    half_copy=True,
    keeps_sent=True,
    whole_embedding_gradient=True,
    logits=(),
)
MEGATRON = Engine(
    "megatron",
    flash_attention=False,
    dropout=True,
    norm_input=2,
    fused=True,
    selective="scores",
    loss_bytes=(38, 14),
    weight=2,
    gradient=2,
    splits_checkpoint=False,
    accumulation=0,
    fully_sharded=False,
    overlaps_gradients=False,
    bucket=float("inf"),
    split="even",
    scatters_pipeline=True,
    gradient_width_sent=2,
)
MEGATRON_2021 = replace(MEGATRON, name="megatron-2021", accumulation=6, scatters_pipeline=False)
TORCHTITAN = Engine(
    "torchtitan",
    norm_extra=4,
    repeats_kv=True,
    selective="alternate",
    logits=(2, 4, 4, 4),
    gathered_width=2,
    split="ends",
)
NANOTRON = Engine(
    "nanotron",
    norm_input=2,
    copies_output=True,
    layout_copies=7,
    fused=True,
    gathered=0.5,
    logits=(4, 4, 4),
    loss_bytes=(38, 14),
    weight=2,
    accumulation=10,
    fully_sharded=False,
    scatters_gradients=False,
    gathers_per_layer=6,
    overlaps_tensor=True,
    split="cumulative",
    reports_first_stage=True,
)
LITGPT = Engine("litgpt", norm_extra=2, keeps_qkv=True, repeats_kv=True, split="even", logits=(2, 2, 2, 2), gathered_width=2)

ENGINES = {each.name: each for each in (DANLU, MEGATRON, MEGATRON_2021, TORCHTITAN, NANOTRON, LITGPT)}


@cache
def engine(name: str) -> Engine:
    """An engine by its name. UserError: unknown."""
    if name not in ENGINES:
        raise UserError(f"engine: {name!r} is unknown; give one of {', '.join(sorted(ENGINES))}")
    return ENGINES[name]


def compiled(one: Engine) -> Engine:
    """The same after compilation: norms, rotation and activation are single kernels that recompute what is cheap."""
    return replace(one, fused=True, norm_extra=0, norm_input=one.residual or 2, mlp_tensors=3)
