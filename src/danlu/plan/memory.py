"""Bytes per device for every pipeline stage: an estimate, and a bound that a run is not expected to exceed."""

from __future__ import annotations

from dataclasses import dataclass

from danlu.plan.activations import layer_bytes, working_bytes
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.parameters import states, trainable_parameters, weight_parameters

WORKSPACE = 0.3e9
"""Bytes that matrix-product libraries and small buffers take from the framework's allocator."""


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
    one, width = job.dimensions, states(job)
    held, trained = weight_parameters(job)[rank], trainable_parameters(job)[rank]
    z, shards = job.zero_stage, job.shards
    frozen = 0.0
    if job.lora is not None:
        frozen = held * job.lora.base_bits / 8 / (shards if z == 3 else 1)
    weights = frozen + trained * width.weight / (shards if z == 3 else 1)
    gradients = trained * width.gradient / (shards if z >= 2 else 1)
    master = trained * width.master / (shards if z >= 1 else 1)
    optimizer = trained * width.optimizer / (shards if z >= 1 else 1)
    if job.offload != "none":
        master = optimizer = 0.0
    if job.offload.startswith("parameters"):
        weights = 0.0
    layers = sum(job.stages[rank])
    layer = layer_bytes(job)
    activations = in_flight(job, rank) * layers * layer
    residual = job.tokens * one.hidden * job.width / (job.tensor if job.sequence_parallel else 1)
    logits = 0.0
    if rank == job.pipeline - 1:
        logits = job.tokens * one.vocab / job.tensor * sum(job.engine.logits) + 2 * residual
    communication = _communication(job, held, layers)
    temporaries = working_bytes(job) + trained * job.engine.gradient_temporary
    if job.engine.half_copy and job.precision in {"bf16", "fp16"} and z < 3:
        temporaries += held * 2
    parts = weights + gradients + master + optimizer
    moving = activations + logits + communication + temporaries
    return StageMemory(
        weights,
        gradients,
        master,
        optimizer,
        activations,
        logits,
        communication,
        temporaries,
        WORKSPACE,
        1.02 * parts + 1.15 * moving + 2 * WORKSPACE,
        residual if rank == 0 else 0.0,
    )


def _communication(job: Job, held: float, layers: int) -> float:
    """ZeRO 3: the layer in use and the one being fetched, and the gradient of one in its full size."""
    if job.zero_stage < 3 or layers == 0:
        return 0.0
    return held / layers * (2 * job.width + job.engine.gradient)
