"""Every layout that danlu could run a training on: what divides what, and which techniques go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt
from typing import Any

from danlu.plan.hardware import Hardware
from danlu.plan.job import Job
from danlu.plan.order import problem
from danlu.plan.request import OFFLOADS, Request

RECOMPUTE = (("none", 1), ("selective", 2), ("selective", 1), ("full", 2), ("full", 1))
"""What is made anew, and in every how many-th layer; the last one keeps least."""


def divisors(number: int) -> list[int]:
    """All of them, rising."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def layouts(request: Request, hardware: Hardware, devices: int, precision: str) -> Iterator[list[Job]]:
    """Layouts without recompute and offload; the jobs of one list differ in their micro-batch alone, smallest first.

    Tensor ranks exchange activations in every layer, so they stay inside one machine; what the recipe refuses is left out.
    There are none in a precision that the device or the engine does not have.
    """
    one, batch, offered = request.dimensions, request.global_batch, request.offered
    if getattr(hardware.peak, precision) is None or (hardware.family == "cpu" and precision not in offered.cpu_precisions):
        return
    if request.compile and devices > 1 and not offered.compiled_layouts:
        return
    for tensor in _open(request, "tensor", divisors(devices)):
        if devices % tensor or not _splits(request, hardware, tensor):
            continue
        if request.compile and tensor > 1 and not offered.compiled_splits:
            continue
        for pipeline in _open(request, "pipeline", divisors(devices // tensor)):
            data, rest = divmod(devices, tensor * pipeline)
            if (
                rest
                or pipeline > (one.layers if offered.pipelines else 1)
                or batch % data
                or request.fixed.get("data", data) != data
            ):
                continue
            basis = {"data": data, "tensor": tensor, "pipeline": pipeline, "precision": precision}
            for variant in _variants(request, basis):
                micro = [_job(request, basis | variant | {"micro_batch": m}) for m in _micro_batches(request, data)]
                if runnable := [job for job in micro if _schedulable(job)]:
                    yield runnable


def device_numbers(request: Request, hardware: Hardware) -> list[int]:
    """Numbers of devices that the batch, the layers and the heads can keep busy, rising."""
    batch, layers = request.global_batch, request.dimensions.layers
    tensors = [degree for degree in range(1, hardware.devices_per_node + 1) if _splits(request, hardware, degree)]
    splits = [(data, pipeline) for data in divisors(batch) for pipeline in range(1, min(layers, batch // data) + 1)]
    return sorted({tensor * data * pipeline for tensor in tensors for data, pipeline in splits})


def _splits(request: Request, hardware: Hardware, tensor: int) -> bool:
    one = request.dimensions
    fits = not any(size % tensor for size in (one.heads, one.kv_heads, one.ffn))
    return fits and (tensor <= hardware.devices_per_node or "tensor" in request.fixed)


def _variants(request: Request, basis: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """ZeRO stages, sequence parallelism and schedules that go with the degrees."""
    offered = request.offered
    stages = [0] if basis["data"] == 1 else [0, 1, 3] if basis["pipeline"] > 1 else [0, 1, 2, 3]
    unsplit = request.compile and not offered.compiled_splits
    stages = [stage for stage in stages if stage in offered.zero_stages and not (unsplit and stage == 3)]
    splits_sequence = offered.sequence_parallel and basis["tensor"] > 1 and request.sequence % basis["tensor"] == 0
    for zero in _open(request, "zero_stage", stages):
        for sequence_parallel in _open(request, "sequence_parallel", [False, True] if splits_sequence else [False]):
            for schedule in _open(request, "schedule", request.schedules if basis["pipeline"] > 1 else ("1f1b",)):
                if zero not in stages or (sequence_parallel and not splits_sequence) or schedule not in offered.schedules:
                    continue
                if schedule == "interleaved" and basis["pipeline"] < offered.interleaved_from:
                    continue
                if schedule == "zero-bubble" and (zero >= 2 or request.compile):
                    continue  # its two backward passes would each gather parameters anew, and need a graph of their own
                virtual = 2 if schedule in ("interleaved", "zero-bubble") else 1
                if basis["pipeline"] * virtual <= request.dimensions.layers:
                    yield {
                        "zero_stage": zero,
                        "sequence_parallel": sequence_parallel,
                        "schedule": schedule,
                        "virtual_stages": virtual,
                    }


def _micro_batches(request: Request, data: int) -> Iterable[int]:
    share = request.global_batch // data
    return [size for size in _open(request, "micro_batch", divisors(share)) if share % size == 0]


def _schedulable(job: Job) -> bool:
    """A pipeline needs a micro-batch for every rank, and rounds of as many when a rank has several stages."""
    if job.pipeline == 1:
        return job.schedule in ("1f1b", "gpipe")
    count = job.micro_batches
    if count < job.pipeline or (job.virtual_stages > 1 and count % job.pipeline):
        return False
    return problem(job.schedule, job.pipeline, count, job.virtual_stages) is None  # type: ignore[arg-type]


def _job(request: Request, fields: dict[str, Any]) -> Job:
    return Job(
        dimensions=request.dimensions,
        sequence=request.sequence,
        global_batch=request.global_batch,
        compile=request.compile,
        lora=request.lora,
        masks=request.masks,
        second=request.second,
        **fields,
    )


def techniques(request: Request, hardware: Hardware, job: Job) -> list[list[Job]]:
    """The layout with every kind of recompute, a list for each kind of offload, cheapest first."""
    modes = RECOMPUTE[:1] if job.schedule == "zero-bubble" else RECOMPUTE  # each of its backward passes would recompute anew
    kinds = request.offered.recomputes
    recomputes = [mode for mode in modes if mode[0] in kinds and request.fixed.get("recompute", mode[0]) == mode[0]]
    if "recompute_every" in request.fixed:
        every = request.fixed["recompute_every"]
        recomputes = list(dict.fromkeys((kind, every if kind != "none" else 1) for kind, _ in recomputes))
    offloads = _open(request, "offload", [each for each in OFFLOADS if each in request.offloads])
    return [
        [job.with_(recompute=kind, recompute_every=every, offload=offload) for kind, every in recomputes]
        for offload in offloads
        if (offload == "none" or request.offered.offload) and _offloads(job, hardware, offload)
    ]


def _offloads(job: Job, hardware: Hardware, offload: str) -> bool:
    """Parameters leave from the shards of ZeRO 3 alone, and not to disk under compilation; a CPU's memory is its host's."""
    if offload.startswith("parameters") and (job.zero_stage < 3 or (job.compile and offload.endswith("disk"))):
        return False
    return not (offload.endswith("host") and hardware.family == "cpu")


def _open(request: Request, name: str, values: Iterable[Any]) -> list[Any]:
    """The values to try: those, or the one that is given."""
    return [request.fixed[name]] if name in request.fixed else list(values)
