"""The best plans of a training on so many devices: every layout and technique, memory first, then time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.memory import Memory, exceeds, memory
from danlu.plan.request import OFFLOADS, Request
from danlu.plan.space import layouts, techniques
from danlu.plan.step_time import StepTime, step_time

KEPT = 5
"""Plans that are shown."""
SAME = 1.01
"""Step times that differ by less are equal, and the simpler plan is the better one."""
RECOMPUTED = ("none", "selective", "full")
"""Least first."""


@dataclass(frozen=True)
class Plan:
    """One layout with its prediction."""

    job: Job
    hardware: Hardware

    @cached_property
    def memory(self) -> Memory:
        """Of every stage."""
        return memory(self.job, self.hardware)

    @cached_property
    def time(self) -> StepTime:
        """Of an optimizer step."""
        return step_time(self.job, self.hardware)

    @property
    def fits(self) -> bool:
        """Whether the safe bound of every stage is within the device, and what is offloaded within the host."""
        return self.memory.fits(self.hardware) and self.host_memory <= self.hardware.host_memory

    @cached_property
    def host_memory(self) -> float:
        """Bytes of offloaded states in host memory, for one device."""
        if not self.job.offload.endswith("host"):
            return 0.0
        here = memory(self.job.with_(offload="none"), self.hardware).stages
        return max(there.states - left.states for there, left in zip(here, self.memory.stages, strict=True))

    def hours(self, request: Request) -> float:
        """Of the whole training."""
        return request.steps * self.time.seconds / 3600

    def price(self, request: Request) -> float:
        """US dollars of the whole training."""
        return self.hours(request) * self.job.devices * self.hardware.price


@dataclass(frozen=True)
class Found:
    """What a search found, best first, and how much it looked at."""

    plans: tuple[Plan, ...]
    considered: int
    """Layouts and micro-batches; techniques of each are not counted."""


def cost(job: Job) -> tuple[int, ...]:
    """What a plan takes beyond plain training, dearest technique first: offload, sharding, recompute, accumulation.

    Mixed precision is the cheapest of all and comes before them. Fewer is simpler, and wins between plans of equal speed.
    """
    degrees = sum(degree > 1 for degree in (job.tensor, job.pipeline))
    return (
        OFFLOADS.index(job.offload),
        degrees,
        job.zero_stage,
        RECOMPUTED.index(job.recompute),
        int(job.recompute_every > 1),
        int(job.sequence_parallel),
        job.virtual_stages,
        job.micro_batches,
    )


def search(request: Request, hardware: Hardware, devices: int) -> Found:
    """The best plans that fit, of different layouts. Empty when nothing fits.

    Every layout is tried with every technique. Two shortcuts change nothing in the result: a layout whose time without any
    technique is above the worst plan kept needs no memory prediction, and a micro-batch that does not fit with everything that
    saves memory ends its row, since the larger ones do not either.
    """
    fitting: list[Plan] = []
    fastest: dict[tuple[object, ...], float] = {}
    considered = 0
    for precision in request.precisions:
        for row in layouts(request, hardware, devices, precision):
            for job in row:
                considered += 1
                if Plan(job, hardware).time.seconds > _limit(fastest):
                    continue
                choices = [[Plan(each, hardware) for each in group] for group in techniques(request, hardware, job)]
                if not any(group and group[-1].fits for group in choices):
                    break
                for plan in _fitting(choices):
                    fitting.append(plan)
                    fastest[_key(plan.job)] = min(plan.time.seconds, fastest.get(_key(plan.job), inf))
    return Found(tuple(_ranked(fitting)), considered)


def _ranked(plans: list[Plan]) -> list[Plan]:
    """The plans to show: of those about as fast as the fastest that is left, the simplest; and no second one of its layout."""
    left = sorted(plans, key=lambda plan: plan.time.seconds)
    shown: list[Plan] = []
    while left and len(shown) < KEPT:
        as_fast = [plan for plan in left if plan.time.seconds <= SAME * left[0].time.seconds]
        best = min(as_fast, key=lambda plan: cost(plan.job))
        shown.append(best)
        left = [plan for plan in left if _key(plan.job) != _key(best.job)]
    return shown


def _fitting(choices: list[list[Plan]]) -> list[Plan]:
    """Of each kind of offload the fastest recompute that fits; offload is left out once nothing need be recomputed."""
    found: list[Plan] = []
    for group in choices:
        fit: list[Plan] = []
        for plan in group:
            if not any(_recomputes_less(other.job, plan.job) for other in fit) and plan.fits:
                fit.append(plan)
        if fit:
            found.append(min(fit, key=lambda plan: plan.time.seconds))
            if found[-1].job.recompute == "none":
                break
    return found


def _recomputes_less(job: Job, other: Job) -> bool:
    """Whether a job makes anew at most what another one does, so that it is no slower."""
    return RECOMPUTED.index(job.recompute) <= RECOMPUTED.index(other.recompute) and _share(job) <= _share(other)


def _share(job: Job) -> float:
    return 0.0 if job.recompute == "none" else 1 / job.recompute_every


def _limit(fastest: dict[tuple[object, ...], float]) -> float:
    """Step time above which a plan can no longer be among those shown."""
    return sorted(fastest.values())[KEPT - 1] * SAME if len(fastest) >= KEPT else inf


def _key(job: Job) -> tuple[object, ...]:
    """Plans with the same key are variants of one layout, of which only the best is shown."""
    return (job.data, job.tensor, job.pipeline, job.zero_stage)


def fits(request: Request, hardware: Hardware, devices: int) -> Plan | None:
    """Some plan that fits, or None; much faster than a search where there is one."""
    for precision in reversed(request.precisions):
        for row in layouts(request, hardware, devices, precision):
            for group in techniques(request, hardware, row[0]):
                if group and not exceeds(group[-1], hardware) and (plan := Plan(group[-1], hardware)).fits:
                    return plan
    return None
