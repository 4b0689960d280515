"""Parameters, floating-point operations and bytes of a shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class ParameterParts:
    """Parameters by part. A tied head is counted once, as the embedding, so head is 0 then."""

    embedding: int
    attention: int
    """Query, key, value and output projections with their biases."""
    mlp: int
    """Gate, up and down projections with their biases."""
    norms: int
    """All RMSNorm weights, QK-norm included."""
    head: int

    @property
    def total(self) -> int:
        """All parameters: what a checkpoint stores."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head

    @property
    def non_embedding(self) -> int:
        """Without embedding and head: the N of scaling laws (Kaplan et al., arXiv:2001.08361, section 2.1)."""
        return self.attention + self.mlp + self.norms


def parameter_parts(shape: ModelShape) -> ParameterParts:
    """Parameters of every part."""
    parts = dict.fromkeys(("embedding", "attention", "mlp", "norms", "head"), 0)
    for name, size in tensor_shapes(shape).items():
        if name.endswith("norm.weight"):
            part = "norms"
        elif ".self_attn." in name:
            part = "attention"
        elif ".mlp." in name:
            part = "mlp"
        else:
            part = "head" if name == "lm_head.weight" else "embedding"
        parts[part] += prod(size)
    return ParameterParts(**parts)


def parameter_count(shape: ModelShape) -> int:
    """All parameters, a tied head once: what a checkpoint stores and model cards print."""
    return parameter_parts(shape).total


def matmul_parameters(shape: ModelShape) -> int:
    """Parameters that every token is multiplied with: the projections and the head, tied or not.

    Excluded are the input embedding (a look-up), norms and biases (no matrix product).
    """
    matrices = sum(prod(size) for name, size in tensor_shapes(shape).items() if len(size) == 2)
    return matrices if shape.tied_embeddings else matrices - shape.vocab_size * shape.hidden_size


def flops_per_token(shape: ModelShape, sequence_length: int, *, causal: bool = False, frozen: bool = False) -> float:
    """Floating-point operations to train on one token, forward and backward, in a sequence of `sequence_length` tokens.

    6 a matmul parameter (2 forward, 4 backward) + 12 a layer, head, head dimension and attended position (query times key and
    attention times value: 2 each forward, twice that backward). Recomputation is not counted: model FLOPs, not hardware FLOPs.

    `causal=False`, the default and the numerator of MFU, is PaLM's convention (Chowdhery et al., arXiv:2204.02311, appendix B): a
    query attends to all `sequence_length` positions although half are masked. Published MFU figures use it. `causal=True` counts
    the positions a query may see, (sequence_length + 1) / 2 on average: the least work possible. A sliding window caps the
    positions of its layers in both. Documents that are masked from one another are not taken into account. PaLM's N includes an
    untied input embedding; here it never counts, since a look-up multiplies nothing.

    `frozen` matrices get no gradients of their own, which saves 2 of the 6 a parameter.
    """
    windowed = 0 if shape.sliding_window is None else max(shape.layers - shape.full_attention_layers, 0)
    context = (shape.layers - windowed) * _attended(sequence_length, sequence_length, causal)
    if shape.sliding_window is not None:
        context += windowed * _attended(sequence_length, shape.sliding_window, causal)
    return (4 if frozen else 6) * matmul_parameters(shape) + 12 * shape.heads * shape.head_dim * context


def _attended(length: int, window: int, causal: bool) -> float:
    """Positions a query attends to in one layer, averaged over a sequence."""
    window = min(length, window)
    if not causal:
        return window
    # The first `window` queries see 1, 2, ..., window positions, the rest see window each.
    return (window * (window + 1) / 2 + (length - window) * window) / length


@dataclass(frozen=True)
class StateBytes:
    """Bytes of what training keeps for the parameters on one device, without activations."""

    weights: int
    """FP32. Under bf16 and fp16 autocast they are the master weights: there is no second FP32 copy."""
    gradients: int
    """FP32."""
    optimizer: int
    """AdamW's two moments, FP32."""
    half_copy: int
    """bf16 and fp16: the half-precision copy of the multiplied weights that autocast keeps from forward to backward."""

    @property
    def total(self) -> int:
        """All of it: 16 bytes a parameter in FP32."""
        return self.weights + self.gradients + self.optimizer + self.half_copy


def state_bytes(shape: ModelShape, precision: Precision = "fp32") -> StateBytes:
    """Bytes that AdamW training keeps for the parameters of an unsharded replica at the given `train.precision`."""
    parameters = parameter_count(shape)
    half_copy = 0 if precision == "fp32" else 2 * matmul_parameters(shape)
    return StateBytes(weights=4 * parameters, gradients=4 * parameters, optimizer=8 * parameters, half_copy=half_copy)
