"""How many parameters each pipeline rank holds, and how many bytes each kind of state takes for one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from danlu.plan.job import Job

ROW_SPLIT = ("o_proj", "down_proj")
"""Matrices that tensor ranks split by their inputs; the others by their outputs."""
MOMENTS = {"adamw": 2, "adam": 2, "lion": 1, "sgd-momentum": 1, "sgd": 0, "none": 0}


@dataclass(frozen=True)
class StateWidths:
    """Bytes for one trainable parameter."""

    weight: int
    gradient: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them, unsharded."""
        return self.weight + self.gradient + self.master + self.optimizer


def states(job: Job) -> StateWidths:
    """What the job keeps for a trainable parameter."""
    moments = MOMENTS.get(job.optimizer, 2)
    if job.precision == "fp32":
        return StateWidths(4, 4, 0, 4 * moments)
    if job.pure:
        return StateWidths(2, 2, 0, 2 * moments)
    weight = job.engine.weight
    return StateWidths(weight, job.engine.gradient, 4 if weight < 4 else 0, 4 * moments)


def weight_parameters(job: Job) -> tuple[float, ...]:
    """Parameters per pipeline rank on one device, split over tensor ranks and not over data ranks; without adapters."""
    one, t = job.dimensions, job.tensor
    layer = (one.attention_parameters + one.mlp_parameters + one.column_biases) / t + one.small_parameters
    counts = [sum(chunks) * layer for chunks in job.stages]
    table = ceil(one.vocab / t) * one.hidden  # on the first tensor rank, which has most
    counts[0] += table + one.positions * one.hidden
    if job.pipeline > 1 or not one.tied_embeddings:
        counts[-1] += table
    counts[-1] += one.final_norm
    return tuple(counts)


def largest_shards(job: Job) -> tuple[float, ...]:
    """Of these what the first data rank holds under ZeRO. FSDP splits every tensor by its rows; the first part is the largest."""
    one, n = job.dimensions, job.shards
    if not job.engine.fully_sharded or not one.gated_mlp:
        return tuple(count / n for count in weight_parameters(job))
    query, kv, ffn = (width // job.tensor for width in (one.query_width, one.kv_width, one.ffn))
    shapes = [(query, one.hidden), *2 * [(kv, one.hidden)], (one.hidden, query)]
    shapes += [*2 * [(ffn, one.hidden)], (one.hidden, ffn), *(2 + one.output_bias + one.mlp_bias) * [(one.hidden, 1)]]
    shapes += one.qkv_bias * [(query, 1), (kv, 1), (kv, 1)] + one.mlp_bias * 2 * [(ffn, 1)]
    shapes += one.qk_norm * 2 * [(one.head_size, 1)]
    layer = sum(ceil(rows / n) * columns for rows, columns in shapes)
    table = ceil(ceil(one.vocab / job.tensor) / n) * one.hidden
    counts = [float(sum(chunks) * layer) for chunks in job.stages]
    counts[0] += table
    if job.pipeline > 1 or not one.tied_embeddings:
        counts[-1] += table
    counts[-1] += ceil(one.final_norm / n)
    return tuple(counts)


def second_bytes(job: Job) -> float:
    """Of the weights of a second model on one device: FP32, split over tensor ranks, and by ZeRO 3 over data ranks."""
    if job.second is None or not job.second.apart:
        return 0.0
    return 4 * job.second.dimensions.parameters / job.tensor / (job.shards if job.zero_stage == 3 else 1)


def trainable_parameters(job: Job) -> tuple[float, ...]:
    """Parameters per pipeline rank that are updated: all, or the adapters alone."""
    return weight_parameters(job) if job.lora is None else _adapters(job, 1)


def trainable_shards(job: Job) -> tuple[float, ...]:
    """Of these what the first data rank holds under ZeRO."""
    return largest_shards(job) if job.lora is None else _adapters(job, job.shards)


def _adapters(job: Job, shards: int) -> tuple[float, ...]:
    """Per pipeline rank, whole or the first of so many parts."""
    assert job.lora is not None
    ends = [0, *accumulate(job.chunks)]
    chunks = [sum(adapter_parameters(job, kinds, shards) for kinds in job.lora.kinds[a:b]) for a, b in pairwise(ends)]
    return tuple(sum(chunks[rank :: job.pipeline]) for rank in range(job.pipeline))


def adapter_parameters(job: Job, kinds: Iterable[str], shards: int = 1) -> float:
    """Of one layer with adapters at these matrices: one matrix from the input to the rank, one from there to the output."""
    assert job.lora is not None
    rank, wide = job.lora.rank, job.lora.rank + job.lora.lengths
    if shards == 1:
        return sum(outputs * wide + inputs * rank for outputs, inputs in adapter_sizes(job, kinds))
    return sum(ceil(outputs / shards) * wide + ceil(rank / shards) * inputs for outputs, inputs in adapter_sizes(job, kinds))


def adapter_sizes(job: Job, kinds: Iterable[str]) -> list[tuple[float, float]]:
    """(output, input) of each adapter on one tensor rank, which has of either what it has of the matrix."""
    sizes = ((kind, *job.dimensions.matrices[kind]) for kind in kinds)
    return [(n, k / job.tensor) if kind in ROW_SPLIT else (n / job.tensor, k) for kind, n, k in sizes]
