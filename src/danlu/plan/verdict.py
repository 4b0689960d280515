"""What `danlu plan` prints: the verdict first, then why, then the plans it was chosen among."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from danlu.plan.explain import why_it_beats, why_it_fits
from danlu.plan.outcome import Outcome, micro_batches, timeline
from danlu.plan.request import Request, recipe_fields
from danlu.plan.search import Plan
from danlu.plan.timeline import duration, text
from danlu.plan.words import count, dollars, gigabytes, layout, span, techniques
from danlu.plural import many

PICTURED = 16
"""Pipeline ranks up to which the schedule is printed."""


def lines(outcome: Outcome, width: int) -> Iterator[str]:
    """The whole answer, for a terminal of so many columns."""
    request, best = outcome.request, outcome.chosen
    yield from _verdict(outcome)
    for note in request.notes:
        yield f"note     {note}"
    if outcome.own is not None:
        yield f"recipe   {_own(outcome.own, best)}"
    if best is None:
        return
    yield ""
    head, shown = columns(outcome.found.plans, request)
    yield from table(("", *head), [[str(place), *row] for place, row in enumerate(shown, 1)])
    for place, (better, worse) in enumerate(pairwise(outcome.found.plans), 1):
        yield f"{place} beats {place + 1}: {why_it_beats(better, worse)}"
    rows = micro_batches(best)
    if len(rows) > 1:
        yield ""
        yield "plan 1 with other micro-batches"
        yield from table(("micro-batch", "a step", "memory", "step", ""), [_size(each, best) for each in rows])
    if 1 < best.job.pipeline <= PICTURED:
        line, note = timeline(best)
        yield ""
        yield from text(line, width)
        yield from [note] if note else []
    yield ""
    yield "to run plan 1, put this into the recipe"
    yield from paste(best)


def _verdict(outcome: Outcome) -> Iterator[str]:
    request, best, hardware = outcome.request, outcome.chosen, outcome.hardware
    where = f"{outcome.devices:,} x {hardware.name}"
    if best is None:
        room = gigabytes(hardware.memory)
        if outcome.found.considered:
            yield f"no       {request.name} fits {where} ({room} each) with no layout and no technique"
        else:
            yield f"no       layout of {many(outcome.devices, 'device')} divides {_divided(request)}"
        for change in outcome.changes:
            yield f"change   {change.text}: {layout(change.plan.job)}, {techniques(change.plan.job)}"
        if not outcome.changes:
            yield "change   none alone would do; a smaller model, or several changes at once"
        return
    yield f"fits     {where}: {layout(best.job)}; {techniques(best.job)}"
    time = best.time
    rate = f"{time.tokens_per_second:,.0f} tokens/s, MFU {time.mfu:.1%}"
    yield f"time     {duration(time.seconds)} a step, {rate}; {count(request.tokens)} tokens in {span(best.hours(request))}"
    price = f"{dollars(best.price(request))} at {dollars(hardware.price)} per device and hour (yours: --price)"
    yield f"price    {price}"
    bounds = [stage.bound for stage in best.memory.stages]
    most = f" (stage {bounds.index(max(bounds))})" if len(bounds) > 1 else ""
    room = gigabytes(hardware.memory)
    yield f"memory   {gigabytes(best.memory.peak)} a device{most}, safe bound {gigabytes(best.memory.bound)} of {room}"
    if best.host_memory:
        yield f"         and {gigabytes(best.host_memory)} of host memory a device"
    for place, line in enumerate(why_it_fits(best)):
        yield f"{'because' if place == 0 else '':8} {line}"


def _divided(request: Request) -> str:
    one = request.dimensions
    heads = f"{many(one.heads, 'head')} ({one.kv_heads} key/value)"
    sizes = f"{many(request.global_batch, 'sample')}, {heads} and {many(one.layers, 'layer')}"
    kept = ", ".join(f"{name} {value}" for name, value in request.fixed.items())
    return sizes + (f" with {kept}" if kept else "")


def columns(plans: Sequence[Plan], request: Request) -> tuple[list[str], list[list[str]]]:
    """Plans as a table: the names of its columns, and a row for each. What all have alike at its default is left out."""
    made = [cells(plan, request) for plan in plans]
    names = [name for name in made[0] if name not in PLAIN or any(row[name] != PLAIN[name] for row in made)] if made else []
    return names, [[row[name] for name in names] for row in made]


PLAIN = {"tensor": "1", "pipeline": "1", "ZeRO": "0", "recompute": "none", "offload": "none", "precision": "bf16"}


def cells(plan: Plan, request: Request) -> dict[str, str]:
    """A plan as a row of a table: column name -> text."""
    job, time = plan.job, plan.time
    every = f" 1/{job.recompute_every}" if job.recompute_every > 1 else ""
    return {
        "data": str(job.data),
        "tensor": f"{job.tensor}{' sp' if job.sequence_parallel else ''}",
        "pipeline": f"{job.pipeline} {job.schedule}" if job.pipeline > 1 else "1",
        "ZeRO": str(job.zero_stage),
        "precision": job.precision,
        "micro-batch": f"{job.micro_batch} x {job.micro_batches}",
        "recompute": f"{job.recompute}{every}",
        "offload": job.offload,
        "memory": gigabytes(plan.memory.peak),
        "step": duration(time.seconds),
        "tokens/s": f"{time.tokens_per_second:,.0f}",
        "MFU": f"{time.mfu:.1%}",
        "time": span(plan.hours(request)),
        "price": dollars(plan.price(request)),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell; those of numbers, which begin with a digit or a dollar, to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    right = [all(row[place][:1].isdigit() or row[place][:1] in "$-" for row in rows) for place in range(len(head))]
    for row in (head, *rows):
        padded = (f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(row, widths, right, strict=True))
        yield "  ".join(padded).rstrip()


def _size(plan: Plan, best: Plan) -> list[str]:
    said = "" if plan.fits else "does not fit"
    if plan.job.micro_batch == best.job.micro_batch:
        said = "plan 1"
    numbers = [str(plan.job.micro_batch), str(plan.job.micro_batches)]
    return [*numbers, gigabytes(plan.memory.peak), duration(plan.time.seconds), said]


def _own(own: Plan, best: Plan | None) -> str:
    said = f"{layout(own.job)}; {techniques(own.job)}: "
    bound = f"{gigabytes(own.memory.bound)} of {gigabytes(own.hardware.memory)}"
    if not own.fits:
        return f"{said}does not fit, needs up to {bound}"
    said += f"fits ({bound}), {duration(own.time.seconds)} a step"
    return f"{said}, {own.time.seconds / best.time.seconds:.2f} x plan 1" if best is not None else said


def paste(plan: Plan) -> Iterator[str]:
    """The sections of a recipe, in YAML."""
    for section, fields in recipe_fields(plan.job).items():
        if not fields:
            continue
        inside = ", ".join(f"{name}: {_yaml(value)}" for name, value in fields.items())
        yield f"{section + ':':10}{{{inside}}}"


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
