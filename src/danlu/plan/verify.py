"""The planner's memory beside a dry run of danlu's torch engine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.plan.activations import head_bytes, head_gradient
from danlu.plan.hardware import load
from danlu.plan.job import Job
from danlu.plan.memory import StageMemory, memory

if TYPE_CHECKING:
    from danlu.plan.dryrun import Measured


def measure_all(cases: Sequence[tuple[Job, ModelShape, int, bool]], processes: int = 1) -> list[Measured]:
    """`dryrun.measure` of each, in a process of its own: process groups and what torch remembers of them are global."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["danlu.plan.dryrun"])
    with context.Pool(processes, maxtasksperchild=1) as pool:
        return pool.starmap(_measure, cases, chunksize=1)


def _measure(job: Job, shape: ModelShape, rank: int, whole: bool) -> Measured:
    from danlu.plan import dryrun

    return dryrun.measure(job, shape, rank, whole)


@dataclass(frozen=True)
class Check:
    """One pipeline rank: what the planner says beside what the dry run counts. Bytes."""

    job: Job
    rank: int
    planned: StageMemory
    measured: Measured

    @property
    def activations(self) -> float:
        """Planned: all that forward passes leave for backward passes, the head's gradient among it."""
        job, kept = self.job, self.planned.activations + self.planned.embedding
        if self.rank < job.pipeline - 1:
            return kept
        adds = job.micro_batches > 1 and (job.zero_stage < 2 or job.pipeline > 1)
        adds |= job.dimensions.tied_embeddings and job.pipeline == 1  # the look-up's, which comes last
        # Where nothing is added to it, the head's gradient is the parameter's gradient from the beginning.
        return kept + head_bytes(job) + (head_gradient(job) if adds else 0.0)

    @property
    def state_error(self) -> float:
        """Of weights, gradients or optimizer states, whichever is worse, as a fraction."""
        one, two = self.planned, self.measured
        pairs = ((one.weights, two.weights), (one.gradients, two.gradients), (one.master + one.optimizer, two.optimizer))
        return max(abs(planned - counted) / max(counted, 1) for planned, counted in pairs)

    @property
    def activation_error(self) -> float:
        """Planned / counted - 1."""
        return self.activations / self.measured.activations - 1

    @property
    def peak_error(self) -> float:
        """Of all tensors at the fullest moment: planned / counted - 1."""
        return (self.planned.estimate - self.planned.overhead) / self.measured.peak - 1

    def as_json(self) -> dict[str, Any]:
        """Everything of this rank."""
        errors = {name: getattr(self, name) for name in ("state_error", "activation_error", "peak_error")}
        return {"rank": self.rank, "planned": asdict(self.planned), "counted": asdict(self.measured), **errors}


def compare(job: Job, shape: ModelShape) -> list[Check]:
    """The first, a middle and the last pipeline rank, with a few micro-batches more than fill the pipeline.

    UserError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise UserError("--verify: PyTorch is not installed; pip install 'danlu[torch]'")
    enough = job.pipeline + 2 if job.schedule == "1f1b" else 2 * job.pipeline
    few = min(job.micro_batches, enough)
    job = job.with_(global_batch=few * job.micro_batch * job.data)
    ranks = sorted({0, job.pipeline // 2, job.pipeline - 1})
    stages = memory(job, load("h100-80gb")).stages
    counted = measure_all([(job, shape, rank, False) for rank in ranks])
    return [Check(job, rank, stages[rank], one) for rank, one in zip(ranks, counted, strict=True)]


def table(checks: Sequence[Check]) -> str:
    """Planned / counted, in GB."""
    lines = ["stage     weights   gradients   optimizer       activations   error    all tensors   error"]
    for each in checks:
        one, two = each.planned, each.measured
        cells = [
            f"{each.rank:5d}",
            *(f"{value / 1e9:11.3f}" for value in (two.weights, two.gradients, two.optimizer)),
            f"{each.activations / 1e9:8.3f} / {two.activations / 1e9:.3f}",
            f"{each.activation_error:+7.1%}",
            f"{(one.estimate - one.overhead) / 1e9:8.2f} / {two.peak / 1e9:.2f}",
            f"{each.peak_error:+7.1%}",
        ]
        exact = "states exact" if each.state_error < 1e-9 else f"states off by {each.state_error:.2%}"
        lines.append(" ".join(cells) + f"  {exact}")
    return "\n".join(["The planner beside a dry run of the PyTorch engine (GB; planned / counted):", *lines])
