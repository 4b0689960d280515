"""The answer to a request: the best plans with their reasons, or what would have to change; as data for programs and pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from danlu.errors import UserError
from danlu.plan.changes import Change, smallest_changes
from danlu.plan.explain import parts, why_it_beats, why_it_fits
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.order import splits_backward
from danlu.plan.request import Request, recipe_fields
from danlu.plan.schedule import Cost, Timeline, simulate
from danlu.plan.search import Found, Plan, search
from danlu.plan.space import divisors
from danlu.plan.step_time import WEIGHT_SHARE

DRAWN = 12_000
"""Operations of a picture, at most; a longer step is drawn with fewer micro-batches."""
SIZES = 10
"""Micro-batch sizes that are compared, at most."""


@dataclass(frozen=True)
class Outcome:
    """What the planner found for a request on so many devices."""

    request: Request
    hardware: Hardware
    devices: int
    found: Found
    changes: tuple[Change, ...]
    """What would fit, when nothing does."""
    own: Plan | None = None
    """The layout that the recipe itself spells out, when it is for as many devices."""

    @property
    def chosen(self) -> Plan | None:
        """The best plan."""
        return self.found.plans[0] if self.found.plans else None


def plan(request: Request, hardware: Hardware, devices: int, own: Job | None = None) -> Outcome:
    """Search, and look for the smallest changes when nothing fits. UserError: the device has none of the precisions."""
    has = [name for name, rate in hardware.peak.model_dump().items() if rate is not None]
    if not set(has) & set(request.precisions):
        raise UserError(f"precision: {hardware.name} has no {' or '.join(request.precisions)}; give one of {', '.join(has)}")
    found = search(request, hardware, devices)
    changes = () if found.plans else tuple(smallest_changes(request, hardware, devices))
    mine = Plan(own, hardware) if own is not None and own.devices == devices else None
    return Outcome(request, hardware, devices, found, changes, mine)


def timeline(plan: Plan) -> tuple[Timeline, str]:
    """A simulated step of a plan, and a note where fewer micro-batches are shown than it has."""
    job, time = plan.job, plan.time
    chunks = job.pipeline * job.virtual_stages
    places = max(1, DRAWN // (chunks * (3 if job.schedule == "zero-bubble" else 2)))
    shown = min(job.micro_batches, max(job.pipeline, places // job.pipeline * job.pipeline))
    send = time.pipeline / (2 * job.micro_batches * job.virtual_stages)  # it blocks both sides, so that it is part of their work
    costs = []
    weight = WEIGHT_SHARE if splits_backward(job.schedule) else 0.0  # type: ignore[arg-type]
    for forward, backward in zip(time.forward, time.backward, strict=True):
        f, b = forward / job.virtual_stages, backward / job.virtual_stages
        costs.append([Cost(f + send, b * (1 - weight) + send, b * weight)] * job.virtual_stages)
    line = simulate(job.schedule, costs, shown, job.virtual_stages)  # type: ignore[arg-type]
    note = (
        f"the first {shown} of {job.micro_batches} micro-batches, as if there were no more" if shown < job.micro_batches else ""
    )
    return line, note


def micro_batches(plan: Plan) -> list[Plan]:
    """The same layout with every size of micro-batch that divides its share of the batch, up to the first few that do not fit."""
    share = plan.job.global_batch // plan.job.data
    rows: list[Plan] = []
    for size in divisors(share):
        job = plan.job.with_(micro_batch=size)
        if job.micro_batches < job.pipeline or (job.virtual_stages > 1 and job.micro_batches % job.pipeline):
            continue
        rows.append(Plan(job, plan.hardware))
        if sum(not row.fits for row in rows) == 2:
            break
    at = next(number for number, row in enumerate(rows) if row.job.micro_batch == plan.job.micro_batch)
    first = max(0, min(at - SIZES // 2, len(rows) - SIZES))
    return rows[first : first + SIZES]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything, in bytes, seconds and US dollars."""
    request, plans = outcome.request, outcome.found.plans
    reasons = [why_it_beats(*pair) for pair in pairwise(plans)] + [""]
    return {
        "name": request.name,
        "parameters": request.dimensions.parameters,
        "hardware": outcome.hardware.name,
        "device_memory": outcome.hardware.memory,
        "devices": outcome.devices,
        "sequence": request.sequence,
        "global_batch": request.global_batch,
        "steps": request.steps,
        "tokens": request.tokens,
        "notes": list(request.notes),
        "fits": bool(plans),
        "considered": outcome.found.considered,
        "plans": [row(each, request) | {"beats_next": why} for each, why in zip(plans, reasons, strict=False)],
        "why_it_fits": why_it_fits(plans[0]) if plans else [],
        "micro_batches": [row(each, request) for each in micro_batches(plans[0])] if plans else [],
        "own": row(outcome.own, request) if outcome.own else None,
        "changes": [{"change": each.text, **row(each.plan, each.request)} for each in outcome.changes],
    }


def row(plan: Plan, request: Request) -> dict[str, Any]:
    """One plan: how it is run, and what is predicted for it."""
    job, time, needed = plan.job, plan.time, plan.memory
    layout = {name: getattr(job, name) for name in LAYOUT}
    return {
        **layout,
        "fits": plan.fits,
        "memory": needed.peak,
        "memory_bound": needed.bound,
        "host_memory": plan.host_memory,
        "stages": [asdict(stage) | {"estimate": stage.estimate} for stage in needed.stages],
        "step_seconds": time.seconds,
        "parts": parts(plan),
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "hours": plan.hours(request),
        "price": plan.price(request),
        "recipe": recipe_fields(job),
    }


LAYOUT = (
    "devices",
    "data",
    "tensor",
    "pipeline",
    "virtual_stages",
    "schedule",
    "zero_stage",
    "sequence_parallel",
    "precision",
    "micro_batch",
    "micro_batches",
    "recompute",
    "recompute_every",
    "offload",
)
"""What of a job is a layout or a technique."""
