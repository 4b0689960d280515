"""Seconds of a step of danlu's torch engine from measured curves (``measured``), operator by operator as the engine calls them.

Nothing is fitted here: how often a layer calls what on which size are facts of the engine's code.
"""

from __future__ import annotations

from math import ceil

from danlu.plan.job import Job
from danlu.plan.measured import Fixed, Precision, Share
from danlu.plan.operators import LayerSeconds, all_keys
from danlu.plan.parameters import adapter_sizes, trainable_parameters, weight_parameters

LOSS_CHUNK = 32 << 20
"""Bytes of the logits that the engine's loss makes at once."""
HEAD_SIZE = 64
"""Of the head that attention was measured with."""
KEYS = 512
"""Keys of a block of torch's attention on a CPU."""
FORWARD_CALLS = 1 / 3
"""Share of the calls of a layer that its forward pass makes."""
SPLIT_GRADIENTS = 5
"""Column-split matrices of a layer: each sums the gradient of its input over the tensor ranks by itself."""


class Profile:
    """The measured seconds of one job."""

    def __init__(self, job: Job, share: Share) -> None:
        self.job, self.share = job, share
        self.precision: Precision = "fp32" if job.precision == "fp32" else "bf16"
        self.mixed = self.precision == "bf16"
        self.whole = job.tokens / (job.tensor if job.sequence_parallel else 1)
        """Tokens of the residual stream on this device."""

    def layer(self) -> LayerSeconds:
        """One layer, one micro-batch, without communication; calls are counted in ``fixed``."""
        job, one, t, tokens = self.job, self.job.dimensions, self.job.tensor, self.job.tokens
        query, kv, ffn, stream = one.query_width / t, one.kv_width / t, one.ffn / t, self.whole * one.hidden
        columns = ((query, 2), (kv, 2), (ffn, 3))
        linear = sum(many * self._product(tokens, width, one.hidden) for width, many in columns)
        weights = one.hidden * sum(many * width for width, many in columns)
        cast, cast_back = (self._of("cast", weights, way) if self.mixed else 0.0 for way in ("forward", "backward"))
        heads = one.heads / t * job.micro_batch * one.head_size / HEAD_SIZE * all_keys(job, KEYS)
        curves = self.share.attention[self.precision]
        attention, attention_back = (heads * curve.above(job.sequence) for curve in (curves.forward, curves.backward))
        repeated = 2 * query if one.kv_heads < one.heads else 0.0
        copies = self._of("copy", tokens * (query + repeated))
        there = 2 * self._of("norm", stream) + self._of("rotation", tokens * (query + kv)) + copies
        there += self._of("activation", tokens * ffn) + 2 * self._of("add", stream)
        # Where a tensor went to several places, its gradients are summed: residual twice, attention's input, MLP's input.
        back = 2 * self._of("norm", stream, "backward") + self._of("rotation", tokens * (query + kv), "backward") + copies
        back += self._of("activation", tokens * ffn, "backward") + 5 * self._of("add", stream)
        linear_back = 2 * linear
        if job.lora is not None:  # no gradients of the matrices
            adapters, adapters_back = self._adapters()
            linear, linear_back, cast_back = linear + adapters, linear + adapters_back, 0.0
        return LayerSeconds(linear, linear_back, attention, attention_back, there + cast, back + cast_back)

    def _adapters(self) -> tuple[float, float]:
        """Two thin products beside a matrix, scaled and added; no call of theirs is in ``fixed``."""
        forward = backward = 0.0
        tokens, lora, add = self.job.tokens, self.job.lora, self.share.operators["add"][self.precision]
        assert lora is not None
        rank, product = lora.rank, self.share.matmul[self.precision].at
        for outputs, inputs in adapter_sizes(self.job, lora.used):
            products = product(2 * tokens * inputs * rank) + product(2 * tokens * outputs * rank)
            forward += products + 2 * add.forward.at(tokens * outputs)
            backward += 2 * products + add.forward.at(tokens * outputs) + add.forward.at(tokens * inputs)
        return forward, backward

    def head(self) -> tuple[float, float]:
        """The loss makes its gradients at once, a few rows at a time; the backward pass only scales them."""
        job, one = self.job, self.job.dimensions
        columns, tokens = one.vocab / job.tensor, job.tokens
        table = columns * one.hidden
        width = 2 if self.mixed else 4
        chunks = ceil(tokens / max(1.0, LOSS_CHUNK // (columns * width)))
        trained = job.lora is None
        there = (2 + trained) * self._product(tokens, columns, one.hidden) + self._of("loss", tokens * columns)
        there += trained * (chunks - 1) * self._of("accumulate", table)
        if self.mixed:
            there += self._of("cast", table) + trained * chunks * self._of("cast", table, "backward")
        return there + self._of("norm", self.whole * one.hidden), (
            trained * self._of("accumulate", table)
            + self._of("accumulate", tokens * one.hidden)
            + self._of("norm", self.whole * one.hidden, "backward")
        )

    def table(self) -> tuple[float, float]:
        """The look-up, and its gradient, which is as large as the table; where that is tied, the head's is added."""
        one = self.job.dimensions
        if self.job.lora is not None:
            return self._of("copy", self.job.tokens * one.hidden), 0.0
        table = one.table / self.job.tensor
        tied = self._of("accumulate", table) if one.tied_embeddings and self.job.pipeline == 1 else 0.0
        return self._of("copy", self.job.tokens * one.hidden), self._of("embedding", table, "backward") + tied

    def accumulate(self, parameters: float) -> float:
        """Adding a micro-batch's gradients to those before."""
        return self._of("accumulate", parameters)

    def exchange(self) -> tuple[float, float]:
        """Tensor-parallel communication of a layer, forward and backward."""
        job = self.job
        if job.tensor == 1:
            return 0.0, 0.0
        volume = job.tokens * job.dimensions.hidden * job.width
        summed = SPLIT_GRADIENTS * self._collective("all_reduce", volume)
        if job.sequence_parallel:
            gathered = 2 * self._collective("all_gather", volume)
            return gathered + 2 * self._collective("reduce_scatter", volume), summed + gathered
        return 2 * self._collective("all_reduce", volume), summed

    def ends(self) -> tuple[float, float]:
        """Tensor-parallel communication of the embedding and of the loss."""
        job = self.job
        if job.tensor == 1:
            return 0.0, 0.0
        volume = job.tokens * job.dimensions.hidden
        return self._collective("all_reduce", 4 * volume), self._collective("all_reduce", job.width * volume)

    def send(self) -> float:
        """A hidden state to the next pipeline stage."""
        return self._collective("send", self.job.residual_bytes) if self.job.pipeline > 1 else 0.0

    def data(self) -> float:
        """Gradients and weights over the data ranks. gloo's collectives hide behind nothing: computation waits for them."""
        job = self.job
        if job.shards == 1:
            return 0.0
        found = 0.0
        frozen = job.lora is not None
        for held, trained, layers in zip(weight_parameters(job), trainable_parameters(job), map(sum, job.stages), strict=True):
            layer = job.dimensions.layer_parameters / job.tensor
            ends = max(0.0, held - layers * layer)  # together one
            fresh = trained / max(1, layers) if frozen else layer
            found = max(found, layers * self._piece(layer, fresh) + self._piece(ends, 0.0 if frozen else ends))
        return found

    def _piece(self, parameters: float, trained: float) -> float:
        """What is gathered and reduced together: it is copied into one buffer before, and divided or copied out after."""
        job, m, volume = self.job, self.job.micro_batches, 4 * trained
        copies = self._of("copy", trained, precision="fp32") + self._of("accumulate", trained)
        if job.zero_stage == 0:
            return copies + self._collective("all_reduce", volume)
        reductions = m if (job.zero_stage == 2 and job.pipeline == 1) or job.zero_stage == 3 else 1
        gathers = (2 * m if job.zero_stage == 3 else m) if job.pipeline == 1 else 1
        gather = self._collective("all_gather", 4 * parameters) + self._of("copy", parameters, precision="fp32")
        return gathers * gather + reductions * (copies + self._collective("reduce_scatter", volume))

    def optimizer(self) -> float:
        """Norm, clipping and update of what this device updates."""
        job = self.job
        return self._of("update", max(trainable_parameters(job)) / (job.shards if job.zero_stage else 1))

    def fixed(self) -> Fixed:
        """What calls cost: without any layout, and what each kind of layout adds to that."""
        job, fixed = self.job, self.share.fixed
        alone = fixed["alone"][self.precision]
        kinds = {
            "data": job.shards > 1 and job.zero_stage == 0,
            "sharded": job.shards > 1 and job.zero_stage > 0,
            "tensor": job.tensor > 1,
            "pipeline": job.pipeline > 1,
        }
        there = [fixed[kind][self.precision] for kind, used in kinds.items() if used and kind in fixed]
        terms = Fixed.model_fields
        more = {name: sum(max(0.0, getattr(each, name) - getattr(alone, name)) for each in there) for name in terms}
        return Fixed(**{name: getattr(alone, name) + more[name] for name in terms})

    def _product(self, m: float, n: float, k: float) -> float:
        """One matrix product."""
        return self.share.matmul[self.precision].above(2 * m * n * k)

    def _of(self, name: str, elements: float, way: str = "forward", precision: Precision | None = None) -> float:
        both = self.share.operators[name][precision or self.precision]
        return (both.forward if way == "forward" else both.backward).above(elements)

    def _collective(self, name: str, volume: float) -> float:
        """Beyond an empty message, which is among the calls."""
        curve = self.share.collectives.get(name)
        return curve.above(volume) if curve is not None else 0.0
