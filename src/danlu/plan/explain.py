"""Why a plan fits, why it beats another one, and what would have to change when none fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from danlu.plan import hardware as devices_known
from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.request import Request
from danlu.plan.search import SAME, Plan, fits
from danlu.plan.timeline import duration
from danlu.plan.words import gigabytes, offload, recompute

SHORTEST = 128
"""Tokens of a sample below which no shorter one is proposed."""


def why_it_fits(plan: Plan) -> list[str]:
    """What each technique of a plan is needed for, cheapest first: what memory would be without it."""
    return [line for name, without in _undone(plan.job) if (line := _without(name, Plan(without, plan.hardware)))]


def _undone(job: Job) -> Iterator[tuple[str, Job]]:
    """The plan without one of its techniques, in the order of what they cost."""
    if job.precision != "fp32":
        yield f"without {job.precision}", job.with_(precision="fp32")
    share = job.global_batch // job.data
    if job.micro_batches > 1 and job.pipeline == 1:
        larger = next(size for size in range(job.micro_batch + 1, share + 1) if share % size == 0)
        yield f"with a micro-batch of {larger}", job.with_(micro_batch=larger)
    if job.recompute != "none":
        yield f"without {recompute(job)}", job.with_(recompute="none", recompute_every=1)
    if job.sequence_parallel:
        yield "without sequence parallelism", job.with_(sequence_parallel=False)
    if job.zero_stage and not job.offload.startswith("parameters"):
        yield f"without ZeRO {job.zero_stage}", job.with_(zero_stage=0)
    if job.offload != "none":
        yield f"without the {offload(job.offload)}", job.with_(offload="none")


def _without(name: str, plan: Plan) -> str:
    """Such as ``without selective recompute stage 3 needs up to 91.0 GB of 84.9 GB``; empty when it would fit all the same."""
    room = plan.hardware.memory
    bounds = [stage.bound for stage in plan.memory.stages]
    if max(bounds) <= room:
        return ""
    who = f"stage {bounds.index(max(bounds))}" if len(bounds) > 1 else "a device"
    return f"{name} {who} needs up to {gigabytes(max(bounds))} of {gigabytes(room)}"


def parts(plan: Plan) -> dict[str, float]:
    """Seconds of a step by what they are spent on; they add up to the step."""
    time = plan.time
    spent = {
        "tensor-parallel communication": time.tensor,
        "waiting in the pipeline": time.bubble + time.pipeline,
        "gradient and parameter traffic": time.data,
        "optimizer": time.optimizer,
        "offload": time.offload,
    }
    return {"computing": time.seconds - sum(spent.values()), **spent}


def why_it_beats(better: Plan, worse: Plan) -> str:
    """One line: how much faster, and by what; or, where both are as fast, what it does without."""
    gain = worse.time.seconds - better.time.seconds
    if abs(gain) < (SAME - 1) * better.time.seconds:
        return "as fast, and simpler: " + _simpler(better.job, worse.job)
    mine, other = parts(better), parts(worse)
    name = max(mine, key=lambda part: other[part] - mine[part])
    spent = f"{duration(mine[name])} of" if mine[name] else "no"
    said = f"{gain / worse.time.seconds:.0%} faster: {spent} {name} against {duration(other[name])}"
    if name == "computing":
        return said + _why_computing(better.job, worse.job)
    return said


def _why_computing(better: Job, worse: Job) -> str:
    if (better.recompute, better.recompute_every) != (worse.recompute, worse.recompute_every):
        return f" ({recompute(better)} against {recompute(worse)})"
    if better.precision != worse.precision:
        return f" ({better.precision} against {worse.precision})"
    if better.micro_batch != worse.micro_batch:
        return f" (micro-batch {better.micro_batch} against {worse.micro_batch})"
    return ""


def _simpler(better: Job, worse: Job) -> str:
    """The dearest technique that one has and the other has not."""
    if better.offload != worse.offload:
        return f"{offload(better.offload)} offloaded against {offload(worse.offload)}"
    for name in ("pipeline", "tensor"):
        ours, theirs = getattr(better, name), getattr(worse, name)
        if (ours > 1) != (theirs > 1):
            return f"no {name} parallelism" if ours == 1 else f"{name} {ours} alone"
    if better.zero_stage != worse.zero_stage:
        return f"ZeRO {better.zero_stage} against {worse.zero_stage}"
    if better.recompute != worse.recompute:
        return f"{recompute(better)} against {recompute(worse)}"
    return f"{better.micro_batches} micro-batches a step against {worse.micro_batches}"


@dataclass(frozen=True)
class Change:
    """Something that would make the training fit, alone."""

    text: str
    plan: Plan


def smallest_changes(request: Request, hardware: Hardware, devices: int) -> list[Change]:
    """What would fit when nothing does, each change alone and as small as can be; the ones that lose least come first."""
    found = [*_released(request, hardware, devices), *_precision(request, hardware, devices)]
    found += [*_shorter(request, hardware, devices), *_more_devices(request, hardware, devices)]
    return [*found, *_larger_device(request, hardware, devices)]


def _released(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Without one of the settings that were given."""
    for name, value in request.fixed.items():
        others = {key: each for key, each in request.fixed.items() if key != name}
        if (plan := fits(request.with_(fixed=others), hardware, devices)) is not None:
            yield Change(f"{name} {getattr(plan.job, name)} instead of {value}", plan)


def _precision(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """In 16 bit, where FP32 alone was allowed."""
    mixed = request.with_(precisions=("bf16",))
    if request.precisions == ("fp32",) and (plan := fits(mixed, hardware, devices)) is not None:
        yield Change("mixed precision (bf16)", plan)


def _shorter(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Fewer tokens a micro-batch: one sample is the least, so it has to be shorter. The step keeps its tokens."""
    times = 2
    while request.sequence // times >= SHORTEST:
        if request.sequence % times == 0:
            less = request.with_(sequence=request.sequence // times, global_batch=request.global_batch * times)
            if (plan := fits(less, hardware, devices)) is not None:
                yield Change(f"samples of {less.sequence:,} tokens instead of {request.sequence:,}", plan)
                return
        times *= 2


def _more_devices(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    """Twice as many, and so on, and the powers of two between them."""
    doubled = [devices << times for times in range(1, 20)]
    powers = [1 << times for times in range(20) if 1 << times > devices]
    for number in sorted({*doubled, *powers}):
        if (plan := fits(request, hardware, number)) is not None:
            yield Change(f"{number:,} devices instead of {devices:,}", plan)
            return


def _larger_device(request: Request, hardware: Hardware, devices: int) -> Iterator[Change]:
    known = [devices_known.load(name) for name in devices_known.names()]
    for other in sorted(known, key=lambda each: (each.memory, each.price)):
        if other.memory > hardware.memory and (plan := fits(request, other, devices)) is not None:
            yield Change(f"{other.name} ({gigabytes(other.memory)}) instead of {hardware.name}", plan)
            return
