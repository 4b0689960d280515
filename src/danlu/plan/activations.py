"""Bytes of activations that one layer keeps for its backward pass, on one device.

Counted tensor by tensor. With Megatron's implementation of GPT the count is the closed form of Korthikanti et al. 2022
(arXiv:2205.05198): s b h (10 + 24 / t + 5 a s / (h t)), and its variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from danlu.plan.engine import compiled
from danlu.plan.job import Job
from danlu.plan.order import splits_backward
from danlu.plan.parameters import adapter_sizes


def layer_bytes(job: Job) -> float:
    """One layer and one micro-batch under the job's recompute mode, averaged over recompute_every."""
    tensors = _tensors(job)
    if job.recompute == "none":
        return tensors.total
    return tensors.total + (_kept(job, tensors) - tensors.total) / job.recompute_every


def beside_layers(job: Job, rank: int, passes: int) -> float:
    """What a pipeline rank keeps beside its layers' own for so many micro-batches, over all chunks."""
    masks = job.masks * job.micro_batch * job.local_sequence * job.sequence * job.width
    rotary = job.tokens * job.dimensions.head_size * 4 if job.engine.makes_rotary else 0.0
    sends = job.engine.keeps_sent and (rank < job.pipeline - 1 or job.virtual_stages > 1)
    kept = passes * (masks + rotary) + ((passes + 2) * job.residual_bytes if sends else 0.0)
    if rank == job.pipeline - 1 and splits_backward(job.plain_schedule):  # the head's weight, too, gets its gradient later
        kept += min(rank, job.micro_batches - 1) * (head_bytes(job) + head_gradient(job))
    return kept


def head_bytes(job: Job) -> float:
    """What the last norm and the loss keep for the backward pass beside the logits, or the head's gradient in their stead."""
    norm = (2 if job.lora is None else 1) * job.residual_bytes  # its input and, to train its weight, its normalised value
    return norm if job.engine.logits else norm + job.tokens * job.dimensions.hidden * job.width


def head_gradient(job: Job) -> float:
    """Bytes in FP32, where the loss makes it beside the logits."""
    return 0.0 if job.engine.logits or job.lora is not None else 4 * job.dimensions.table / job.tensor


def working_bytes(job: Job) -> float:
    """What the layer in its backward pass holds on top: gradients of its widest tensors, and what it has recomputed."""
    one = job.dimensions
    gradients = job.tokens * job.width * ((3 if one.gated_mlp else 2) * one.ffn / job.tensor + one.hidden)
    return gradients + recomputed_bytes(job)


def output_gradients(job: Job) -> float:
    """Gradients of the outputs of a layer's matrices and norms, of which those of their weights are made."""
    one, t = job.dimensions, job.tensor
    products = (one.query_width + 2 * one.kv_width + 2 * one.ffn) / t + 2 * one.hidden
    return job.tokens * (products * job.width + 2 * one.hidden * 4 / (t if job.sequence_parallel else 1))


def recomputed_bytes(job: Job) -> float:
    """What a layer that recomputes has again in its backward pass, beyond what it has kept."""
    tensors = _tensors(job)
    return 0.0 if job.recompute == "none" else max(0.0, tensors.total - _kept(job, tensors))


@dataclass(frozen=True)
class _Tensors:
    """Bytes of what one layer keeps without recomputation."""

    norms: float
    """Inputs of the norms, what they keep beside, and their outputs, which the matrix products read."""
    masks: float
    projections: float
    """Queries, keys and values as attention keeps them."""
    scores: float
    attention: float
    """Attention's output."""
    mlp: float
    adapters: float
    """What is within the adapters, and what each has of its own around them."""

    @property
    def total(self) -> float:
        return self.norms + self.masks + self.projections + self.scores + self.attention + self.mlp + self.adapters


def _tensors(job: Job) -> _Tensors:
    engine = compiled(job.engine) if job.compile else job.engine
    one, w, t, tokens = job.dimensions, job.width, job.tensor, job.tokens
    query, kv, ffn = one.query_width / t, one.kv_width / t, one.ffn / t
    # What is split along the sequence is split over the tensor ranks only under sequence parallelism.
    residual = tokens * one.hidden / (t if job.sequence_parallel else 1)
    mask = 1 if engine.dropout else 0
    scores = 0.0
    if not engine.flash_attention:
        scores = (w + (w + mask if engine.dropout else 0)) * one.heads / t * tokens * job.sequence
    projections = query + 2 * (query if engine.repeats_kv else kv)
    if engine.keeps_qkv:
        projections = (query + 2 * kv) + query + (query if engine.repeats_kv else kv)
    attention = w * tokens * query * (2 if engine.copies_output and job.micro_batch > 1 else 1)
    if engine.flash_attention:
        attention += tokens * one.heads / t * 4  # FP32 log of the softmax's denominator
    # A matrix product with frozen weights keeps no input; of a frozen norm's and of the MLP's tensors less is kept, too.
    apart = job.lora is not None and job.lora.dropout and engine.drops_apart
    read = {kind for kind in one.matrices if job.lora is None or (kind in job.lora.used and not apart)}
    inputs = bool(read & {"q_proj", "k_proj", "v_proj"}) + bool(read & {"gate_proj", "up_proj"})
    norm_input = max(engine.norm_input, engine.residual, 4 if w == 4 else 0) if one.gated_mlp else w
    norm_extra = (engine.norm_extra if one.gated_mlp else 0) if job.lora is None else 0
    outputs = inputs * w
    if job.lora is not None and job.lora.dropout and not apart:
        outputs += w + 1
    gathered = 0.0
    if job.sequence_parallel:
        gathered = engine.gathered * inputs * w * tokens * one.hidden * (1 - 1 / t)
    mlp = (engine.mlp_tensors if one.gated_mlp else 2) - ("down_proj" not in read)
    return _Tensors(
        norms=residual * (2 * norm_input + 2 * norm_extra + outputs) + gathered,
        masks=residual * 2 * mask,
        projections=w * tokens * projections,
        scores=scores,
        attention=attention,
        mlp=w * tokens * ffn * mlp,
        adapters=0.0 if job.lora is None else tokens * sum(_adapter_widths(job, apart)),
    )


def _adapter_widths(job: Job, apart: bool) -> Iterator[float]:
    """Bytes a token of what each adapter of a layer keeps."""
    assert job.lora is not None
    for outputs, inputs in adapter_sizes(job, job.lora.used):
        # Between its matrices; its own dropped input, and the mask; what is brought to its length.
        yield job.width * job.lora.rank + apart * (job.width + 1) * inputs + job.lora.lengths * job.width * outputs


def _kept(job: Job, tensors: _Tensors) -> float:
    """What stays of them under the job's recompute mode."""
    one, w, t, tokens = job.dimensions, job.width, job.tensor, job.tokens
    if job.recompute == "full":
        return job.residual_bytes * (t if job.sequence_parallel and not job.engine.splits_checkpoint else 1)
    kind = job.engine.selective
    if kind == "scores":
        return tensors.total - tensors.scores
    residual = tokens * one.hidden / (t if job.sequence_parallel else 1)
    query, kv, ffn = one.query_width / t, one.kv_width / t, one.ffn / t
    gates = 2 if one.gated_mlp else 1
    if kind == "alternate":  # of q, k, v, o, gate, up, down every second one from q on; what the collectives return stays, too
        collected = 2 * residual if t > 1 else 0.0
        return job.residual_bytes + w * (collected + tokens * (query + kv + ffn * gates / 2 + one.hidden) + tokens * query)
    # Of a row-split product what is kept is the product, whole along the sequence, and not its sum over the tensor ranks.
    products = query + 2 * kv + gates * ffn + 2 * one.hidden
    if job.lora is not None:  # an adapter's last product is added to the matrix's own, which both stay
        sizes = {"q_proj": query, "k_proj": kv, "v_proj": kv, "gate_proj": ffn, "up_proj": ffn}
        products += sum(sizes.get(kind, one.hidden) + job.lora.rank for kind in job.lora.used)
    return job.residual_bytes + w * tokens * (products + query)
