"""The planner's memory beside a dry run of danlu's torch engine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import TYPE_CHECKING

from danlu.model.shape import ModelShape
from danlu.plan.job import Job

if TYPE_CHECKING:
    from danlu.plan.dryrun import Measured


def measure_all(cases: Sequence[tuple[Job, ModelShape, int, bool]], processes: int = 1) -> list[Measured]:
    """`dryrun.measure` of each, in a process of its own: process groups and what torch remembers of them are global."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["danlu.plan.dryrun"])
    with context.Pool(processes, maxtasksperchild=1) as pool:
        return pool.starmap(_measure, cases, chunksize=1)


def _measure(job: Job, shape: ModelShape, rank: int, whole: bool) -> Measured:
    import torch

    from danlu.plan import dryrun

    torch.set_num_threads(1)
    return dryrun.measure(job, shape, rank, whole)
