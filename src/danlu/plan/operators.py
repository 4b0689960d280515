"""Seconds of the operators of one layer on one device: matrix products, attention, and what only moves memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from danlu.plan.constants import Rates
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.parameters import adapter_sizes

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (64, 128, 0.8), (64, 64, 0.65))
"""Output tiles (rows, columns) that matrix-product libraries choose from, and the rate of each relative to the largest:
a smaller tile reads its operands more often."""
RING_SLOWDOWN = 0.3
"""How much longer the blocks of ring attention off the diagonal take: they are smaller, and their results are merged in FP32.
Read off torchtitan's four rows: 1 to 8 ranks."""
PIPELINE_DEPTH = 128
"""Values of the inner dimension that pass before a tile's pipeline is full and after it drains."""
KEYS = 128
"""Keys of a block of attention on a GPU; blocks in which a causal query sees nothing are left out."""


def matmul_seconds(m: float, n: float, k: float, job: Job, hardware: Hardware, rates: Rates, eight_bit: bool = False) -> float:
    """(m, k) @ (k, n): the slower of arithmetic and memory, in whole waves of tiles over the multiprocessors."""
    fp8 = eight_bit and job.precision == "fp8" and hardware.peak.fp8 is not None
    share = rates.matmul_fp8 if fp8 else rates.matmul
    peak = hardware.rate("fp8" if fp8 else "bf16" if job.precision == "fp8" else job.precision)
    operand = 1 if fp8 else job.width
    arithmetic = 2 * m * n * k / (peak * share * _tiling(int(m), int(n), hardware.multiprocessors) * k / (k + PIPELINE_DEPTH))
    memory = (operand * (m * k + k * n) + job.width * m * n) / (hardware.bandwidth * rates.bandwidth)
    return rates.launch + max(arithmetic, memory)


@lru_cache(maxsize=4096)
def _tiling(m: int, n: int, multiprocessors: int) -> float:
    """The best tile's rate: how full its tiles and its last wave are."""
    if multiprocessors == 1:
        return 1.0

    def rate(rows: int, columns: int, speed: float) -> float:
        tiles = ceil(m / rows) * ceil(n / columns)
        waves = ceil(tiles / multiprocessors)
        return speed * m * n / (waves * multiprocessors * rows * columns)

    return max(rate(*tile) for tile in TILES)


def move_seconds(moved: float, hardware: Hardware, rates: Rates, kernels: int = 1) -> float:
    """Element-wise kernels that read and write so many bytes together."""
    return kernels * rates.launch + moved / (hardware.bandwidth * rates.bandwidth)


@dataclass(frozen=True)
class LayerSeconds:
    """One layer, one micro-batch, one device, without communication."""

    linear: float
    """Matrix products with weights, forward."""
    linear_backward: float
    attention: float
    """The attention core: scores, softmax, dropout, values."""
    attention_backward: float
    elementwise: float
    """Norms, residual sums, rotation, activation, dropout, forward."""
    elementwise_backward: float

    @property
    def forward(self) -> float:
        """All of the forward pass."""
        return self.linear + self.attention + self.elementwise

    @property
    def backward(self) -> float:
        """All of the backward pass, without recomputation."""
        return self.linear_backward + self.attention_backward + self.elementwise_backward


def layer_seconds(job: Job, hardware: Hardware, rates: Rates) -> LayerSeconds:
    """What one layer of the job takes."""
    linear, linear_backward = _linear(job, hardware, rates)
    attention, attention_backward = _attention(job, hardware, rates)
    moved, kernels = _elementwise_bytes(job)
    elementwise = move_seconds(moved, hardware, rates, kernels)
    return LayerSeconds(linear, linear_backward, attention, attention_backward, elementwise, 2 * elementwise)


def _linear(job: Job, hardware: Hardware, rates: Rates) -> tuple[float, float]:
    one, t, m = job.dimensions, job.tensor, job.tokens
    qkv = (one.query_width + 2 * one.kv_width) / t
    up = (2 if one.gated_mlp else 1) * one.ffn / t
    shapes = ((qkv, one.hidden), (one.hidden, one.query_width / t), (up, one.hidden), (one.hidden, one.ffn / t))
    forward = backward = 0.0
    for n, k in shapes:
        forward += matmul_seconds(m, n, k, job, hardware, rates, True)
        backward += matmul_seconds(m, k, n, job, hardware, rates, True)
        if job.lora is None:
            backward += matmul_seconds(k, n, m, job, hardware, rates, True)
    adapters = _adapters(job, hardware, rates)
    forward, backward = forward + adapters[0], backward + adapters[1]
    if (
        job.precision == "fp8"
    ):  # operands are scaled and cast: activation and weight once forward, gradient and both again backward
        cast = sum(m * k + n * k for n, k in shapes) * 3
        forward += move_seconds(cast, hardware, rates, 8)
        backward += move_seconds(2 * cast, hardware, rates, 16)
    return forward, backward


def _adapters(job: Job, hardware: Hardware, rates: Rates) -> tuple[float, float]:
    """Two thin products beside a matrix, whose result is scaled and added to the matrix's own."""
    if job.lora is None:
        return 0.0, 0.0
    forward = backward = 0.0
    m, rank, w = job.tokens, job.lora.rank, job.width
    for outputs, inputs in adapter_sizes(job, job.lora.used):
        for n, k in ((rank, inputs), (outputs, rank)):
            forward += matmul_seconds(m, n, k, job, hardware, rates)
            backward += matmul_seconds(m, k, n, job, hardware, rates) + matmul_seconds(k, n, m, job, hardware, rates)
        forward += move_seconds(5 * m * outputs * w, hardware, rates, 2)
        backward += move_seconds((2 * outputs + 3 * inputs) * m * w, hardware, rates, 2)
    return forward, backward


def all_keys(job: Job, block: int) -> float:
    """How much longer attention takes where a mask is a tensor, so that no block of keys can be left out."""
    return max(1.0, 2 / (1 + block / job.sequence)) if job.masks else 1.0


def _attention(job: Job, hardware: Hardware, rates: Rates) -> tuple[float, float]:
    one, length = job.dimensions, job.local_sequence
    heads = one.heads / job.tensor * job.micro_batch
    products = 4 * heads * length * job.sequence * one.head_size
    peak = hardware.rate("bf16" if job.precision == "fp8" else job.precision)
    if job.engine.flash_attention:
        # Causal: half of the work. Backward does five products where forward does two (Dao 2023).
        arithmetic = products / 2 / (peak * rates.attention) * (1 + RING_SLOWDOWN * (1 - 1 / job.context))
        forward = rates.launch + arithmetic * all_keys(job, KEYS)
        return forward, 2.5 * forward / 0.85
    scores = heads * length * job.sequence * job.width
    operands = heads * (length + job.sequence) * one.head_size * job.width
    arithmetic = products / (peak * rates.matmul) * (one.head_size + PIPELINE_DEPTH) / one.head_size
    # Two products (one writes, one reads the scores), softmax (reads, writes), dropout (reads, writes, writes its mask).
    passes = (2 + 2 + (2.5 if job.engine.dropout else 0)) * scores + 2 * operands
    forward = max(arithmetic, 0.0) + move_seconds(passes, hardware, rates, 4)
    return forward, 2 * forward


def _elementwise_bytes(job: Job) -> tuple[float, int]:
    """Bytes that the forward pass of a layer moves outside matrix products and attention, and its kernels."""
    one, t, w = job.dimensions, job.tensor, job.width
    whole = job.tokens / (t if job.sequence_parallel else 1)
    fused = job.engine.fused or job.compile
    rotated = job.tokens * (one.query_width + one.kv_width) / t
    if not one.gated_mlp:
        norms = 2 * 2 * w
        residual = 2 * (3 * w + (1 if job.engine.dropout else 0))
        activation = 2 * w if fused else 6 * w
        return whole * one.hidden * (norms + residual) + job.tokens * one.ffn / t * activation, 8 if fused else 16
    copies = job.engine.layout_copies * 2 * w * job.tokens * one.query_width / t
    if fused:
        return whole * one.hidden * (2 * 4 * w) + rotated * 2 * w + job.tokens * one.ffn / t * 3 * w + copies, 8
    # Eager: a norm casts, squares and averages, scales, casts and weighs; a rotation casts, multiplies and casts.
    norm = (w + 4) + 4 + 8 + (4 + w) + 2 * w
    rotation = (w + 4) + 8 + (4 + w)
    return whole * one.hidden * (2 * norm + 2 * 3 * w) + rotated * rotation + job.tokens * one.ffn / t * 5 * w, 26


def head_seconds(job: Job, hardware: Hardware, rates: Rates) -> tuple[float, float]:
    """The output embedding and the loss, forward and backward, split over the tensor ranks."""
    one, m = job.dimensions, job.tokens
    columns = one.vocab / job.tensor
    forward = matmul_seconds(m, columns, one.hidden, job, hardware, rates)
    backward = matmul_seconds(m, one.hidden, columns, job, hardware, rates)
    backward += matmul_seconds(one.hidden, columns, m, job, hardware, rates) if job.lora is None else 0.0
    logits = m * columns
    there, back = job.engine.loss_bytes
    loss, loss_backward = move_seconds(logits * there, hardware, rates, 6), move_seconds(logits * back, hardware, rates, 4)
    return forward + loss, backward + loss_backward
