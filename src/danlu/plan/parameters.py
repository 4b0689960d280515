"""How many parameters each pipeline rank holds, and how many bytes each kind of state takes for one of them."""

from __future__ import annotations

from dataclasses import dataclass

from danlu.plan.job import Job

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
    """Parameters per pipeline rank on one device, split over tensor ranks and not over data ranks."""
    one, t = job.dimensions, job.tensor
    layer = (one.attention_parameters + one.mlp_parameters) / t + one.small_parameters
    counts = [sum(chunks) * layer for chunks in job.stages]
    counts[0] += one.table / t + one.positions * one.hidden
    if job.pipeline > 1 or not one.tied_embeddings:
        counts[-1] += one.table / t
    counts[-1] += one.final_norm
    return tuple(counts)


def trainable_parameters(job: Job) -> tuple[float, ...]:
    """The same for what is updated: all, or the adapters alone."""
    if job.lora is None:
        return weight_parameters(job)
    return tuple(sum(chunks) * job.lora.parameters_per_layer / job.tensor for chunks in job.stages)
