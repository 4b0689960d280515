"""Bytes per device for every pipeline stage: an estimate, and a bound that a run is not expected to exceed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from danlu.plan import order
from danlu.plan.activations import beside_layers, head_bytes, head_gradient, layer_bytes, working_bytes
from danlu.plan.constants import allocator
from danlu.plan.fullest import Held, fullest
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.parameters import (
    StateWidths,
    adapter_parameters,
    largest_shards,
    second_bytes,
    states,
    trainable_parameters,
    trainable_shards,
    weight_parameters,
)

WORKSPACE = 0.05e9
"""Bytes that matrix-product libraries and small buffers take from the framework's allocator."""
LOSS_CHUNK = 4 * 32e6
"""Bytes of the logits that danlu's loss holds at once, with their FP32 softmax."""
STATES_MARGIN, MOVING_MARGIN, FIXED_MARGIN = 1.02, 1.3, 0.3e9
"""The bound: states are exact but for padding; what comes and goes is not. Two and a half times the spread of the residuals."""

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
    embedding: float
    """Output of the input embedding."""
    communication: float
    """Weights that ZeRO has gathered, and gradients that it has not split yet."""
    temporaries: float
    overhead: float
    """Library workspace, and what the allocator holds beyond what is alive."""
    bound: float
    elsewhere: float = 0.0
    """What of all that is not there at the fullest moment, because what is there for another reason has come in its place."""

    @property
    def states(self) -> float:
        """What the parameters need before any data arrives."""
        return self.weights + self.gradients + self.master + self.optimizer

    @property
    def estimate(self) -> float:
        """All of it."""
        moving = self.activations + self.logits_and_loss + self.embedding + self.communication + self.temporaries
        return self.states + moving + self.overhead - self.elsewhere


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


@dataclass(frozen=True)
class _Shared:
    """What is the same on all stages of a job."""

    job: Job
    width: StateWidths
    layer: float
    """Bytes of one layer's activations."""
    working: float
    residual: float
    """Bytes of one hidden state between layers."""
    reserved: float
    on_cpu: bool


def memory(job: Job, hardware: Hardware, reserved: float | None = None) -> Memory:
    """Predict every stage; `reserved` replaces the engine's allocator constant."""
    return Memory(tuple(_stages(job, hardware, reserved or allocator(job.engine_name, job.compile))))


def exceeds(job: Job, hardware: Hardware) -> bool:
    """Whether the bound of some stage is above the device; of a deep pipeline the first such stage is answer enough."""
    return any(stage.bound > hardware.memory for stage in _stages(job, hardware, allocator(job.engine_name, job.compile)))


def _stages(job: Job, hardware: Hardware, reserved: float) -> Iterator[StageMemory]:
    on_cpu = hardware.family == "cpu"
    shared = _Shared(job, states(job), layer_bytes(job), working_bytes(job), job.residual_bytes, reserved, on_cpu)
    parameters = zip(weight_parameters(job), trainable_parameters(job), largest_shards(job), trainable_shards(job), strict=True)
    return (_stage(shared, rank, *counts) for rank, counts in enumerate(parameters))


def in_flight(job: Job, rank: int) -> Sequence[int]:
    """For each of a rank's chunks the micro-batches whose activations it keeps when it keeps most."""
    kind, m, v = job.plain_schedule, job.micro_batches, job.virtual_stages
    if order.problem(kind, job.pipeline, m, v) is None:
        return order.in_flight(kind, rank, job.pipeline, m, v, job.stages[rank])
    return [min(job.pipeline - rank, m)] * v  # no such schedule exists; 1F1B on every chunk stands in


def _stage(shared: _Shared, rank: int, held: float, trained: float, shard: float, trained_shard: float) -> StageMemory:
    job, width, z = shared.job, shared.width, shared.job.zero_stage
    share = shard / held if z else 1.0
    mine = trained_shard / trained if z and trained else 1.0
    whole = z < 3 and not job.engine.fully_sharded  # the weights; the gradients, too, up to stage 1
    weights = trained * width.weight * (1.0 if whole else mine)
    if job.lora is not None:
        weights += _frozen_bytes(job, rank, held) * (1.0 if whole else share)
    gradients = trained * width.gradient * (1.0 if whole and z < 2 else mine)
    master = trained * width.master * mine
    optimizer = trained * width.optimizer * mine
    if job.offload != "none":
        master = optimizer = 0.0
    if job.offload.startswith("parameters"):
        weights = 0.0
    weights += second_bytes(job)
    chunks = job.stages[rank]
    flying = in_flight(job, rank)
    passes = sum(many * layers for many, layers in zip(flying, chunks, strict=True))
    activations = passes * shared.layer + beside_layers(job, rank, sum(flying))
    logits = _loss_bytes(job) + head_bytes(job) if rank == job.pipeline - 1 else 0.0
    # Where a norm reads the embedding as it is, the first layer's activations have it.
    embedding = shared.residual if rank == 0 and job.engine.residual != job.engine.norm_input else 0.0
    kept, cached, layer_copy = _half_copies(job, passes, max(chunks))
    # The loss is over when the last layer's backward pass begins: what each holds for itself is not there at the same time.
    temporaries = kept + max(cached, shared.working + layer_copy - logits)
    communication = _communication(job, width, held, trained, sum(chunks))
    rest = _whole_embedding_gradient(job, rank)
    if job.data == 1:
        gradients += rest
    elif job.zero_stage < 2 or job.pipeline > 1:
        communication += rest
    parts = weights + gradients + master + optimizer
    moving = (activations + logits + embedding + communication + temporaries) * shared.reserved
    elsewhere = 0.0
    if job.engine_name == "danlu":
        has = Held(held, trained, weights + master + optimizer)
        elsewhere = parts + moving / shared.reserved - fullest(job, rank, has, flying, shared.on_cpu)
    overhead = WORKSPACE + moving * (1 - 1 / shared.reserved)
    bound = parts * STATES_MARGIN + moving * MOVING_MARGIN + WORKSPACE
    estimate = parts + moving / shared.reserved + overhead - elsewhere
    return StageMemory(
        weights=weights,
        gradients=gradients,
        master=master,
        optimizer=optimizer,
        activations=activations,
        logits_and_loss=logits,
        embedding=embedding,
        communication=communication,
        temporaries=temporaries,
        overhead=overhead,
        elsewhere=elsewhere,
        bound=max(bound, estimate) + FIXED_MARGIN,
    )


def _half_copies(job: Job, passes: float, layers: int) -> tuple[float, float, float]:
    """16-bit copies of the layers' matrices: kept for backward passes, only until a forward pass is over, and of one layer."""
    if not job.engine.half_copy or job.precision not in {"bf16", "fp16"}:
        return 0.0, 0.0, 0.0
    one = job.dimensions
    layer = 2 * (one.attention_parameters + one.mlp_parameters) / job.tensor
    if job.lora is not None:
        layer = layer * (not job.lora.quantised) + 2 * adapter_parameters(job, job.lora.used)
    if job.recompute == "none":
        return passes * layer, 0.0, 0.0
    again = 1 / job.recompute_every
    return passes * layer * (1 - again), layers * layer * again, layer


def _whole_embedding_gradient(job: Job, rank: int) -> float:
    """Bytes of the embedding's gradient beyond this rank's share."""
    if rank > 0 or not job.engine.whole_embedding_gradient or job.lora is not None:
        return 0.0
    return job.dimensions.table * (1 - 1 / job.tensor) * 4


def _loss_bytes(job: Job) -> float:
    """Logits and what the loss makes of them; or, where it goes a few rows at a time, the head's gradient in its stead."""
    one = job.dimensions
    if job.engine.logits:
        return job.tokens * one.vocab / job.tensor * sum(job.engine.logits)
    half = 2 + 2 if job.width == 2 else 0  # the weight, and the gradient of a piece before it is added up in FP32
    return LOSS_CHUNK + head_gradient(job) * (1 + (4 + half) / 4)


def _frozen_bytes(job: Job, rank: int, held: float) -> float:
    """Base weights under adapters: the matrices in their own width, the others as `Lora.other_bits` says."""
    assert job.lora is not None
    one = job.dimensions
    matrices = sum(job.stages[rank]) * (one.attention_parameters + one.mlp_parameters) / job.tensor
    if job.lora.other_bits is not None:
        return (matrices * job.lora.base_bits + (held - matrices) * job.lora.other_bits) / 8
    if rank == job.pipeline - 1 and not one.tied_embeddings:
        matrices += one.table / job.tensor
    return matrices * job.lora.base_bits / 8 + (held - matrices) * max(job.width, job.lora.base_bits / 8)


def _communication(job: Job, width: StateWidths, held: float, trained: float, layers: int) -> float:
    """What ZeRO's ranks hold whole for a while."""
    if job.zero_stage == 0 or layers == 0:
        return 0.0
    one_layer = 1 / layers
    if not job.engine.fully_sharded:
        return held * one_layer * (2 * job.width + width.gradient) if job.zero_stage == 3 else 0.0
    # The layer in use and the one being fetched; all of them where they are not split again after the forward pass.
    gathered = min(1.0, 2 * one_layer) if job.zero_stage == 3 else 1.0
    waiting = job.micro_batches > 1 and (job.pipeline > 1 or job.zero_stage < 2)
    gathered_width = 2 if job.pure else job.engine.gathered_width
    return held * gathered * gathered_width + trained * (1.0 if waiting else one_layer) * width.gradient
