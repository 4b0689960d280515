"""Why a plan fits, and why it beats another one."""

from __future__ import annotations

from collections.abc import Iterator

from danlu.plan.job import Job
from danlu.plan.search import SAME, Plan
from danlu.plan.timeline import duration
from danlu.plan.words import gigabytes, offload, recompute


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
