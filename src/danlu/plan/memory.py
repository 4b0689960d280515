"""Bytes per device for every pipeline stage: an estimate, and a bound that a run is not expected to exceed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from danlu.plan.activations import layer_bytes, working_bytes
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.parameters import states, trainable_parameters, weight_parameters

WORKSPACE = 0.05e9
"""Bytes that matrix-product libraries and small buffers take from the framework's allocator."""
STATES_MARGIN, MOVING_MARGIN, FIXED_MARGIN = 1.02, 1.3, 0.3e9
"""The bound: states are exact but for padding; what comes and goes is not."""


Verdict = Literal["fits", "tight", "no"]


@dataclass(frozen=True)
class StageMemory:
    """One device of one pipeline stage at its peak. Bytes."""

    weights: float
    gradients: float
    master: float
    optimizer: float
    activations: float
    logits_and_loss: float
    communication: float
    """Gathered parameters and unsharded gradients of ZeRO, buffers of reductions and sends."""
    temporaries: float
    overhead: float
    bound: float
    embedding: float = 0.0
    """Input embedding's output."""

    @property
    def states(self) -> float:
        """What the parameters need before any data arrives."""
        return self.weights + self.gradients + self.master + self.optimizer

    @property
    def estimate(self) -> float:
        """All of it."""
        moving = self.activations + self.logits_and_loss + self.embedding + self.communication + self.temporaries
        return self.states + moving + self.overhead


@dataclass(frozen=True)
class Memory:
    """All pipeline stages; the device that needs most decides whether the job fits."""

    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> float:
        """Largest estimate, bytes."""
        return max(stage.estimate for stage in self.stages)

    @property
    def bound(self) -> float:
        """Largest bound, bytes."""
        return max(stage.bound for stage in self.stages)

    def fits(self, hardware: Hardware) -> bool:
        """Whether even the bound stays within the device."""
        return self.bound <= hardware.memory

    def verdict(self, hardware: Hardware) -> Verdict:
        """fits: even the bound does; tight: the estimate does; no: not even that."""
        if self.fits(hardware):
            return "fits"
        return "tight" if self.peak <= hardware.memory else "no"


def memory(job: Job, hardware: Hardware) -> Memory:
    """Predict every stage."""
    return Memory(tuple(_stage(job, rank) for rank in range(job.pipeline)))


def in_flight(job: Job, rank: int) -> float:
    """Micro-batches, counted in whole stages, whose activations a pipeline rank keeps at once.

    1F1B: one for each stage from here to the end. Interleaved keeps 1 + (p - 1) / (p v) times as much on the first rank
    (Korthikanti et al. 2022, section 4.2.3). GPipe keeps all.
    """
    p, m, v = job.pipeline, job.micro_batches, job.virtual_stages
    if job.schedule == "gpipe":
        return m
    if v == 1:
        return min(p - rank, m)
    chunks = (p - rank - 1) * 2 + (v - 1) * p + 1
    return min(chunks, m * v) / v


def _stage(job: Job, rank: int) -> StageMemory:
    width = states(job)
    held, trained = weight_parameters(job)[rank], trainable_parameters(job)[rank]
    z, shards = job.zero_stage, job.shards
    weights = trained * width.weight / (shards if z == 3 else 1)
    if job.lora is not None:
        weights += _frozen_bytes(job, rank) / (shards if z == 3 else 1)
    gradients = trained * width.gradient / (shards if z >= 2 else 1)
    master = trained * width.master / (shards if z >= 1 else 1)
    optimizer = trained * width.optimizer / (shards if z >= 1 else 1)
    if job.offload != "none":
        master = optimizer = 0.0
    if job.offload.startswith("parameters"):
        weights = 0.0
    layers = sum(job.stages[rank])
    activations = in_flight(job, rank) * layers * layer_bytes(job)
    residual = job.tokens * job.dimensions.hidden * job.width / (job.tensor if job.sequence_parallel else 1)
    logits = 0.0
    if rank == job.pipeline - 1:
        logits = job.tokens * job.dimensions.vocab / job.tensor * sum(job.engine.logits) + 2 * residual
    embedding = residual if rank == 0 else 0.0
    # The loss is over when the last layer's backward pass begins: what each holds for itself is not there at the same time.
    temporaries = max(0.0, working_bytes(job) - logits)
    if job.engine.half_copy and job.precision in {"bf16", "fp16"} and z < 3:
        temporaries += held * 2
    communication = _communication(job, held, layers)
    parts = weights + gradients + master + optimizer
    moving = activations + logits + embedding + communication + temporaries
    reserved = job.engine.reserved_compiled if job.compile else job.engine.reserved
    overhead = WORKSPACE + (reserved - 1) * moving
    bound = parts * STATES_MARGIN + moving * reserved * MOVING_MARGIN + WORKSPACE + FIXED_MARGIN
    return StageMemory(
        weights, gradients, master, optimizer, activations, logits, communication, temporaries, overhead, bound, embedding
    )


def _frozen_bytes(job: Job, rank: int) -> float:
    """Base weights under adapters: the linear layers in their own width, the embeddings and norms in 16 bit."""
    assert job.lora is not None
    one = job.dimensions
    matrices = sum(job.stages[rank]) * (one.attention_parameters + one.mlp_parameters) / job.tensor
    bits = job.lora.base_bits
    scales = 4 / 64 + 1 / 256 if bits == 4 else 0.0  # one FP32 maximum for 64 values (Dettmers et al. 2023)
    rest = weight_parameters(job)[rank] - matrices
    return matrices * (bits / 8 + scales) + rest * job.width


def _communication(job: Job, held: float, layers: int) -> float:
    """ZeRO 3: the layer in use and the one being fetched, and the gradient of one in its full size."""
    if job.zero_stage < 3 or layers == 0:
        return 0.0
    return held / layers * (2 * job.width + job.engine.gradient)
