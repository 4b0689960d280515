"""Bytes of tensors at the fullest moment of a step of danlu's torch engine.

What a step holds for different reasons is not there at the same time: the activations go while the gradients come. So the moments
at which something is at its most are gone through one by one. Buffers that the engine, autograd and FSDP2 make on the way are
facts of their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from danlu.plan.activations import beside_layers, layer_bytes, output_gradients, recomputed_bytes
from danlu.plan.job import Job
from danlu.plan.order import splits_backward

LOSS_CHUNK, LOSS_BLOCK = 32 << 20, 4 << 20
"""Bytes of the logits that the loss makes at once, and of the FP32 softmax that it makes of them at once on a CPU of its own."""


@dataclass(frozen=True)
class Held:
    """What a pipeline rank has."""

    parameters: float
    trained: float
    """Of them, or of the adapters beside them."""
    states: float
    """Bytes of weights and moments that ZeRO leaves to it between steps."""


def fullest(job: Job, rank: int, held: Held, in_flight: Sequence[int], on_cpu: bool) -> float:
    """Of one pipeline rank with so many micro-batches of each of its chunks in flight."""
    return max(_Moments(job, rank, held, in_flight, on_cpu).all())


class _Moments:
    def __init__(self, job: Job, rank: int, has: Held, in_flight: Sequence[int], on_cpu: bool) -> None:
        self.job, self.base, one = job, has.states, job.dimensions
        held, trained = has.parameters, has.trained
        self.in_blocks = on_cpu and job.tensor == 1
        self.first, self.last = rank == 0, rank == job.pipeline - 1
        self.layers = sum(job.stages[rank])
        self.layer = one.layer_parameters if job.tensor == 1 else (held - self._ends(rank)) / max(1, self.layers)
        self.ends = held - self.layers * self.layer
        self.table = one.table / job.tensor
        self.frozen = job.lora is not None
        adapters = trained / max(1, self.layers) if self.frozen else 0.0
        self.layer += adapters
        self.quantised = job.lora is not None and job.lora.quantised
        self.layer_bytes = 4 * self.layer
        if job.lora is not None and self.quantised:
            self.layer_bytes -= (one.attention_parameters + one.mlp_parameters) / job.tensor * (4 - job.lora.base_bits / 8)
        self.held_bytes = self.layers * self.layer_bytes + 4 * self.ends
        self.fresh = 4 * trained
        """Gradients: of all that is trained; of a layer, of the table, of the ends."""
        self.fresh_layer = 4 * (adapters if self.frozen else self.layer)
        self.fresh_table, self.fresh_ends = (0.0, 0.0) if self.frozen else (4 * self.table, 4 * self.ends)
        self.mixed = job.precision != "fp32"
        again = 1 / job.recompute_every if job.recompute != "none" else 0.0
        copy = 2 * (adapters if self.quantised else self.layer) if self.mixed else 0.0
        self.copied = copy * (1 - again)
        """Of autocast's copies of a layer's weights what stays for the backward pass, averaged over the layers."""
        self.cached = (2 * adapters * self.mixed if self.frozen else copy) * again * max(job.stages[rank])
        """And what is there until the forward pass is over; of frozen weights nothing."""
        self.made_again = copy if again else 0.0
        flying = sum(many * layers for many, layers in zip(in_flight, job.stages[rank], strict=True))
        self.whole_layer = layer_bytes(job.with_(recompute="none"))
        self.kept = flying * self.layer_kept() + beside_layers(job, rank, sum(in_flight))
        if job.pipeline == 1 and job.recompute != "none":  # the first of every few layers recomputes
            odd = ceil(one.layers / job.recompute_every) - one.layers / job.recompute_every
            self.kept -= odd * (self.whole_layer - layer_bytes(job.with_(recompute_every=1)))
        self.stream = job.residual_bytes
        self.put_off = 0.0
        """Where gradients of weights wait for a gap in the schedule: what they will be made of, beside the activations."""
        if splits_backward(job.plain_schedule):  # the rank's number of passes wait, and the one that is under way
            self.put_off = min(rank + 1, job.micro_batches) * self.layers / job.virtual_stages * output_gradients(job)

    def _ends(self, rank: int) -> float:
        one, t = self.job.dimensions, self.job.tensor
        tables = (rank == 0) + (rank == self.job.pipeline - 1 and (self.job.pipeline > 1 or not one.tied_embeddings))
        return tables * one.table / t + (one.final_norm if rank == self.job.pipeline - 1 else 0)

    def layer_kept(self) -> float:
        """Activations of a layer, and autocast's copies of its weights, which the backward pass reads."""
        return layer_bytes(self.job) + self.copied

    def all(self) -> list[float]:
        """The candidates: the loss, the first layer that goes backward, the last one, the ends' gradients, the update."""
        return [self.base + each for each in (self.loss(), self.deepest(), self.shallowest(), self.gradients())]

    def kept_gradients(self) -> float:
        """Of the micro-batches before; whole unless ZeRO has split them, the embedding's even on each of the tensor ranks."""
        job = self.job
        if job.micro_batches == 1:
            return 0.0
        if job.zero_stage >= 2 and job.pipeline == 1:
            return self.fresh / job.shards
        whole = 4 * (job.dimensions.table - self.table) if self.first and not self.frozen else 0.0
        return self.fresh + whole

    def gathered(self, backward: bool) -> float:
        """Whole copies of split parameters: all, or at stage 3 the ends, the layer in use and the next."""
        job = self.job
        if job.shards == 1 or job.zero_stage == 0:
            return 0.0
        if job.pipeline > 1 and job.zero_stage < 3:  # in the first forward pass, for all that follow
            return self.held_bytes
        buffer = self.layer_bytes  # of the last gathering, kept until the next one
        if job.zero_stage == 3:
            return buffer + 4 * self.ends + backward * self.layer_bytes
        return buffer + self.held_bytes

    def loss(self) -> float:
        """All activations, the last norm's, and what the loss holds most of."""
        job = self.job
        held = self.kept + self.cached + self.kept_gradients() + self.gathered(False)
        if not self.last:
            return held
        hidden = self.stream + job.tokens * job.dimensions.hidden * (2 * job.width + (0 if self.frozen else 4))
        cast = 2 * self.table if self.mixed else 0.0
        second = 0.0
        if job.second is not None and job.second.beside:  # its hidden states and logits, and probabilities at a temperature
            second = job.tokens * (job.second.dimensions.hidden * job.width + 16)
            second += min(LOSS_CHUNK, job.tokens * job.dimensions.vocab / job.tensor * job.width) + 3 * LOSS_BLOCK
        return held + hidden + cast + second + max(self._chunk(number) for number in range(3))

    def _chunk(self, number: int) -> float:
        """The loss makes some rows of logits, their softmax a block at a time, and a piece of the weight's gradient.

        A name keeps what it had until it has something new: logits and blocks there are two of for a while, and from the third
        chunk on the sum of the pieces, the last piece and a new one.
        """
        job = self.job
        columns, tables, wide = job.dimensions.vocab / job.tensor, self.fresh_table * min(number, 2), 2 if self.mixed else 1
        rows = max(1.0, LOSS_CHUNK // (columns * job.width))
        logits = max(0.0, min(rows, job.tokens - number * rows)) * columns * job.width
        if logits == 0:
            return 0.0
        floats = logits * 4 / job.width
        block = min(LOSS_BLOCK, floats) if self.in_blocks else floats
        blocks = wide if block == floats else wide + 1
        piece = self.fresh_table * (1.5 if self.mixed else 1)
        before = rows * columns * job.width if number else 0.0
        return tables + logits + max(before, blocks * block, piece)

    def deepest(self) -> float:
        """The last layer that recomputes goes backward: the activations before it are there, and the gradients behind it."""
        head = self.fresh_table if self.last else 0.0
        kept = self.kept + (self.stream if self.last else 0.0)
        over = (self.layers - 1) % self.job.recompute_every if self.job.recompute != "none" else 0
        behind = over * (self.fresh_layer - self.whole_layer - (2 * self.layer if self.mixed else 0.0))
        return kept + head + behind + self.put_off + self.working() + self.gathered(True)

    def shallowest(self) -> float:
        """The first layer goes backward: the other layers' gradients are there."""
        job = self.job
        flying = self.kept - (self.layers - 1) * self.layer_kept()
        head = self.fresh_table if self.last else 0.0
        others = (self.layers - 1) * self.fresh_layer / (job.shards if job.zero_stage else 1) if job.micro_batches == 1 else 0.0
        # A pipeline's backward passes leave gathered what they have used, till the next forward pass lets go of it.
        gathered = self.held_bytes if job.zero_stage == 3 and job.pipeline > 1 else self.gathered(True)
        return flying + head + others + self.working() + gathered

    def working(self) -> float:
        """What a layer in its backward pass needs for itself, with what surrounds it at any layer."""
        job, one = self.job, self.job.dimensions
        made = recomputed_bytes(job) + self.made_again + job.tokens * one.hidden * job.width
        return made + self.mlp() + self.stream + self.kept_gradients() + self.reduction()

    def mlp(self) -> float:
        """The last matrix's gradient is made beside its input's; then the input goes, and its two factors' gradients come."""
        job, one = self.job, self.job.dimensions
        wide, matrix = job.tokens * one.ffn / job.tensor * job.width, 0 if self.frozen else one.hidden * one.ffn / job.tensor
        kept = job.lora is None or ("down_proj" in job.lora.used and not job.lora.dropout)
        stays = 4 * matrix if job.micro_batches == 1 else 0  # else it is added to the one before
        made_wide = self.quantised * one.hidden * one.ffn / job.tensor * (6 if self.mixed else 4)
        gone = 0.0
        if job.lora is not None and job.lora.lengths and "down_proj" in job.lora.used:  # what it kept to learn the lengths by
            gone = job.tokens * one.hidden * job.width
        return made_wide - gone + max(wide + matrix * (6 if self.mixed else 4), (3 - kept) * wide + stays)

    def reduction(self) -> float:
        """The buffer in which the layer before is reduced; in a pipeline when the last micro-batch alone is left."""
        return self.fresh_layer if self.job.shards > 1 and self.job.pipeline == 1 else 0.0

    def gradients(self) -> float:
        """Everything is backward: all gradients, and the ends' in the making."""
        job = self.job
        table = self.fresh_table if self.first else 0.0
        if job.shards > 1:
            layers = self.layers * self.fresh_layer / (job.shards if job.zero_stage else 1)
            waiting = self.kept_gradients() - self.fresh if job.micro_batches > 1 and job.zero_stage < 2 else 0.0
            buffers = self.fresh_ends * (2 + 1 / (job.shards if job.zero_stage else 1))
            gathered = 4 * self.ends if job.zero_stage else 0.0
            return layers + max(0.0, waiting) + buffers + gathered
        tied = self.fresh_table if job.dimensions.tied_embeddings and job.pipeline == 1 else 0.0
        return self.fresh + (table if job.micro_batches > 1 else 0.0) + tied + self.stream
