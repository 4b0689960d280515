"""Seconds of an optimizer step: arithmetic, memory traffic, communication that nothing hides, the pipeline's bubble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from danlu.plan.collectives import Group, gather_seconds, reduce_seconds, send_seconds
from danlu.plan.constants import Rates, rates
from danlu.plan.hardware import Hardware
from danlu.plan.job import Dimensions, Job
from danlu.plan.operators import head_seconds, layer_seconds, move_seconds
from danlu.plan.order import problem, splits_backward
from danlu.plan.parameters import states, trainable_parameters, weight_parameters
from danlu.plan.profiled import FORWARD_CALLS, Profile
from danlu.plan.schedule import Cost, seconds

SKEW_NODES = 64
"""Waiting for the slowest node is not assumed to grow beyond the largest number of nodes that it was fitted on."""
WEIGHT_SHARE = 0.5
"""Of a backward pass: the gradients of the weights, which zero-bubble schedules put off."""
OVERLAP_SLOWDOWN = 0.126
"""How much longer work takes while communication runs beside it, and the other way round (Galvatron's published profile)."""


@dataclass(frozen=True)
class StepTime:
    """One optimizer step on the layout. Seconds."""

    seconds: float
    forward: tuple[float, ...]
    """Of one micro-batch, per pipeline rank, all its chunks, tensor-parallel communication included."""
    backward: tuple[float, ...]
    """The same; recomputation included."""
    tensor: float
    """Exposed tensor-parallel (and context-parallel) communication over all micro-batches, slowest stage."""
    pipeline: float
    """Sends between stages that nothing hides."""
    data: float
    """Exposed gradient reduction and parameter gathering."""
    bubble: float
    """Waiting of the slowest stage for the others."""
    optimizer: float
    offload: float
    tokens: int
    """Tokens of the step, all devices."""
    devices: int
    model_flops: float
    """6 a matrix parameter and token, and full attention: the convention of published MFU."""
    peak: float

    @property
    def tokens_per_second(self) -> float:
        """All devices together."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation of the 16-bit peak (Chowdhery et al. 2022)."""
        return self.model_flops / (self.seconds * self.devices * self.peak)


@dataclass(frozen=True)
class _Parts:
    """What a step consists of. Seconds."""

    forward: list[float]
    backward: list[float]
    tensor: float
    """Of one micro-batch."""
    send: float
    data: float
    optimizer: float
    offload: float


def step_time(job: Job, hardware: Hardware, constants: Rates | None = None) -> StepTime:
    """Predict a step: from the machine's own curves where its hardware file has them, else from rates."""
    rate = constants or rates(hardware.family)
    share = hardware.share(job.devices)
    if share is not None and job.engine_name == "danlu":
        parts = _measured(job, hardware, Profile(job, share))
    else:
        forward, backward, tensor, *layer = _stages(job, hardware, rate)
        data, send = _data(job, hardware, rate, *layer), _sends(job, hardware, rate)
        parts = _Parts(forward, backward, tensor, send, data, _optimizer(job, hardware, rate), _offload(job, hardware))
    if job.second is not None:
        parts = _with_second(parts, job, job.second.dimensions)
    busy = job.micro_batches * max(f + b for f, b in zip(parts.forward, parts.backward, strict=True))
    sends = 2 * parts.send * job.micro_batches * job.virtual_stages
    piped = _pipelined(job, parts.forward, parts.backward, parts.send)
    nodes = min(ceil(job.devices / hardware.devices_per_node), SKEW_NODES)
    total = piped + parts.data + parts.optimizer + parts.offload + rate.skew * (nodes - 1)
    one = job.dimensions
    matrices = one.layers * (one.attention_parameters + one.mlp_parameters) + one.table
    tokens = job.global_batch * job.sequence
    flops = tokens * (6 * matrices + 12 * one.layers * one.query_width * job.sequence)
    peak = hardware.peak.bf16 or hardware.peak.fp32
    if job.precision in {"fp32", "fp16"}:
        peak = hardware.peak.fp32 if job.precision == "fp32" else hardware.peak.fp16 or peak
    return StepTime(
        total,
        tuple(parts.forward),
        tuple(parts.backward),
        job.micro_batches * parts.tensor,
        sends,
        parts.data,
        max(0.0, piped - busy - sends),
        parts.optimizer,
        parts.offload,
        tokens,
        job.devices,
        flops,
        peak,
    )


def _with_second(parts: _Parts, job: Job, second: Dimensions) -> _Parts:
    """Its forward pass, at the speed of the trained model's."""

    def work(one: Dimensions) -> float:
        matrices = one.layers * (one.attention_parameters + one.mlp_parameters) + one.table
        return matrices + one.layers * one.query_width * job.sequence

    share = work(second) / work(job.dimensions)
    return replace(parts, forward=[seconds * (1 + share) for seconds in parts.forward])


def _measured(job: Job, hardware: Hardware, profile: Profile) -> _Parts:
    """From curves. Communication of the layers is not hidden."""
    slow = profile.share.slowdown.get(profile.precision, 1.0)
    layer, fixed, (exchange, exchange_back), ends = profile.layer(), profile.fixed(), profile.exchange(), profile.ends()
    calls = fixed.layer * FORWARD_CALLS, fixed.layer * (1 - FORWARD_CALLS)
    again = _recomputed(job, layer.forward + calls[0], layer.linear, layer.attention, layer.elementwise + calls[0], exchange)
    head, table = profile.head(), profile.table()
    forwards, backwards = [], []
    for rank, (chunks, trained) in enumerate(zip(job.stages, trainable_parameters(job), strict=True)):
        layers = sum(chunks)
        f = layers * (layer.forward + calls[0] + exchange) + fixed.micro_batch * FORWARD_CALLS
        b = layers * (layer.backward + calls[1] + exchange_back + again) + fixed.micro_batch * (1 - FORWARD_CALLS)
        b += profile.accumulate(trained) * (1 - 1 / job.micro_batches)
        if rank == 0:
            f, b = f + table[0] + ends[0], b + table[1]
        if rank == job.pipeline - 1:
            f, b = f + head[0] + ends[1], b + head[1]
        forwards.append(f)
        backwards.append(b)
    deepest = max(map(sum, job.stages))
    tensor = deepest * (exchange + exchange_back) + sum(ends)
    update = fixed.step + deepest * fixed.step_layer
    update += profile.optimizer() if job.offload == "none" else 0.0
    return _Parts(
        [slow * each for each in forwards],
        [slow * each for each in backwards],
        slow * tensor,
        slow * profile.send(),
        slow * profile.data(),
        slow * update,
        _offload(job, hardware),
    )


def _pipelined(job: Job, forward: Sequence[float], backward: Sequence[float], send: float) -> float:
    """All micro-batches through the pipeline. A send keeps both sides from computing, as the blocking exchange of 1F1B does."""
    p, m, v = job.pipeline, job.micro_batches, job.virtual_stages
    if p == 1:
        return m * (forward[0] + backward[0])
    kind = job.plain_schedule
    share = WEIGHT_SHARE if splits_backward(kind) else 0.0
    costs = [[Cost(f / v + send, b / v * (1 - share) + send, b / v * share)] * v for f, b in zip(forward, backward, strict=True)]
    if problem(kind, p, m, v) is None:
        return seconds(kind, costs, m, v)
    slots = [f + b + 2 * send * v for f, b in zip(forward, backward, strict=True)]
    return m * max(slots) + (sum(slots) - max(slots)) / v


def _stages(job: Job, hardware: Hardware, rate: Rates) -> tuple[list[float], list[float], float, float, float]:
    """Forward and backward of one micro-batch per rank, tensor communication of the slowest, and those of one layer."""
    layer = layer_seconds(job, hardware, rate)
    exchange = _tensor_exchange(job, hardware, rate)
    context = _context_exchange(job, hardware, rate, layer.attention)
    forward = layer.forward + exchange + context
    again = _recomputed(job, layer.forward, layer.linear, layer.attention, layer.elementwise, exchange + context)
    beside = OVERLAP_SLOWDOWN if job.engine.overlaps_tensor else 1.0
    exchange_backward = exchange / 2 * (1 + beside)
    backward = layer.backward + exchange_backward + 2 * context + again
    head, head_backward = head_seconds(job, hardware, rate)
    table = move_seconds(3 * job.tokens * job.dimensions.hidden * job.width, hardware, rate, 2)
    adds = job.engine.accumulation if job.micro_batches > 1 else 0
    forwards, backwards = [], []
    for rank, (chunks, trained) in enumerate(zip(job.stages, trainable_parameters(job), strict=True)):
        f, b = sum(chunks) * forward, sum(chunks) * backward
        if rank == 0:
            f, b = f + table, b + 2 * table
        if rank == job.pipeline - 1:
            f, b = f + head, b + head_backward
        b += move_seconds(adds * trained, hardware, rate)
        forwards.append(f)
        backwards.append(b)
    tensor = max(map(sum, job.stages)) * (exchange + exchange_backward + 3 * context)
    return forwards, backwards, tensor, forward, backward


def _recomputed(job: Job, forward: float, linear: float, attention: float, elementwise: float, exchange: float) -> float:
    """Seconds of a layer's forward that the backward pass makes again."""
    if job.recompute == "none":
        return 0.0
    again = forward + exchange
    if job.recompute == "selective":
        kind = job.engine.selective
        again = attention if kind == "scores" else elementwise + (linear / 2 if kind == "alternate" else 0.0)
    return again / job.recompute_every


def _tensor_exchange(job: Job, hardware: Hardware, rate: Rates) -> float:
    """Tensor-parallel communication of one layer in one direction: two all-reduces, or as much gathered and scattered."""
    if job.tensor == 1:
        return 0.0
    volume = job.tokens * job.dimensions.hidden * job.width
    group = Group(job.tensor)
    seconds = 2 * reduce_seconds(volume, group, hardware, rate)
    return seconds / 2 if job.async_tensor else seconds


def _context_exchange(job: Job, hardware: Hardware, rate: Rates, attention: float) -> float:
    """Keys and values of the other context ranks, as far as the attention they feed does not hide them."""
    if job.context == 1:
        return 0.0
    volume = job.micro_batch * job.sequence * 2 * job.dimensions.kv_width / job.tensor * job.width
    seconds = gather_seconds(volume, Group(job.context, job.tensor), hardware, rate)
    return max(0.0, seconds - attention)


def _sends(job: Job, hardware: Hardware, rate: Rates) -> float:
    """One activation from a pipeline stage to the next."""
    if job.pipeline == 1:
        return 0.0
    split = job.tensor if job.engine.scatters_pipeline or job.sequence_parallel else 1
    volume = job.tokens * job.dimensions.hidden * job.width / split
    return send_seconds(volume, job.tensor * job.shards, hardware, rate)


def _data(job: Job, hardware: Hardware, rate: Rates, forward: float, backward: float) -> float:
    """Gradient reduction (and ZeRO's gathering of weights) that the layers' own work does not hide, on the stage with most."""
    if job.shards == 1:
        return 0.0
    exchange = _sharded if job.zero_stage == 3 or (job.zero_stage and job.engine.fully_sharded) else _replicated
    data = _DataRanks(job, hardware, rate, Group(job.shards, job.tensor), forward, backward)
    counts = zip(weight_parameters(job), trainable_parameters(job), map(sum, job.stages), strict=True)
    return max(exchange(data, *count) for count in counts)


@dataclass(frozen=True)
class _DataRanks:
    """Between whom gradients and weights are exchanged, and beside what."""

    job: Job
    hardware: Hardware
    rate: Rates
    group: Group
    forward: float
    """Of one layer and one micro-batch. Seconds."""
    backward: float

    def gather(self, size: float) -> float:
        """Seconds in which every rank gets all of so many bytes, or the sums of its part of them."""
        return gather_seconds(size, self.group, self.hardware, self.rate)

    def reduce(self, size: float) -> float:
        """Seconds in which every rank gets the sums of so many bytes."""
        return reduce_seconds(size, self.group, self.hardware, self.rate)


def _beside(work: float, communication: float) -> float:
    """What communication adds to work that it runs beside."""
    if work == 0:
        return communication
    return max(0.0, communication - work) + OVERLAP_SLOWDOWN * min(work, communication)


def _replicated(data: _DataRanks, held: float, trained: float, layers: int) -> float:
    """Gradients are reduced once, in buckets, beside the last backward pass; ZeRO 1 gathers what its ranks have updated."""
    job = data.job
    sent = 2 if job.pure else job.engine.gradient_width_sent
    once = data.gather if job.zero_stage and job.engine.scatters_gradients else data.reduce
    buckets = max(1, ceil(trained * 2 / job.engine.bucket))
    exposed = _beside(layers * data.backward if job.engine.overlaps_gradients else 0.0, buckets * once(trained * sent / buckets))
    if job.zero_stage == 0:
        return exposed
    pieces = max(1, layers * job.engine.gathers_per_layer)
    return exposed + pieces * data.gather(held * job.width / pieces)


def _sharded(data: _DataRanks, held: float, trained: float, layers: int) -> float:
    """FSDP: every layer's weights are gathered beside the layer before, and its gradients reduced beside the one behind.

    Gradients wait for the last micro-batch, except at stage 2. Stage 3 gathers again in the backward pass. Between a pipeline's
    micro-batches weights stay gathered.
    """
    job, layers = data.job, max(layers, 1)
    sent, width = (2, 2) if job.pure else (job.engine.gradient_width_sent, job.engine.gathered_width)
    gather, reduce = data.gather(held / layers * width), data.gather(trained / layers * sent)
    m = job.micro_batches
    gathers = 1 if job.pipeline > 1 else m
    reductions = m if job.zero_stage == 2 and job.pipeline == 1 else 1
    again = gather if job.zero_stage == 3 and job.pipeline == 1 else 0.0
    seconds = gathers * (layers * _beside(data.forward, gather) + gather)
    seconds += (m - reductions) * layers * _beside(data.backward, again)
    return seconds + reductions * (layers * _beside(data.backward, again + reduce) + reduce)


def _optimizer(job: Job, hardware: Hardware, rate: Rates) -> float:
    """The update: every state is read and written, gradients are read for the norm, for scaling and for the update."""
    if job.offload != "none":
        return rate.host
    count = max(trainable_parameters(job)) / (job.shards if job.zero_stage else 1)
    width = states(job)
    moved = count * (2 * (width.master + width.optimizer) + 2 * width.weight + 4 * width.gradient)
    return rate.host + move_seconds(moved, hardware, rate, 20)


def _offload(job: Job, hardware: Hardware) -> float:
    """Gradients to the host and weights back, both waiting for the update there, which runs at the host's memory rate."""
    if job.offload == "none":
        return 0.0
    split = job.shards if job.zero_stage else 1
    count, width = max(trainable_parameters(job)) / split, states(job)
    seconds = count * (width.gradient + width.weight) / hardware.host_link
    seconds += count * 2 * (width.master + width.optimizer + width.gradient) / (hardware.host_link / 2)
    if job.offload.endswith("disk"):
        seconds += count * 2 * (width.master + width.optimizer) / hardware.disk
    if job.offload.startswith("parameters"):
        seconds += 3 * job.micro_batches * max(weight_parameters(job)) / split * job.width / hardware.host_link
    return seconds
