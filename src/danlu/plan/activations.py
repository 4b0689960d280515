"""Bytes of activations that one layer keeps for its backward pass, on one device.

Counted tensor by tensor. With Megatron's implementation of GPT the count is the closed form of Korthikanti et al. 2022
(arXiv:2205.05198): s b h (10 + 24 / t + 5 a s / (h t)), and its variants.
"""

from __future__ import annotations

from danlu.plan.engine import compiled
from danlu.plan.job import Job


def layer_bytes(job: Job) -> float:
    """One layer and one micro-batch under the job's recompute mode, averaged over recompute_every."""
    kept = _kept(job, "none")
    if job.recompute == "none":
        return kept
    return kept + (_kept(job, job.recompute) - kept) / job.recompute_every


def working_bytes(job: Job) -> float:
    """What the layer whose backward pass runs holds on top under recomputation: all that it would have kept."""
    if job.recompute == "none":
        return 0.0
    return max(0.0, _kept(job, "none") - _kept(job, job.recompute))


def _kept(job: Job, recompute: str) -> float:
    engine = compiled(job.engine) if job.compile else job.engine
    one, w, t = job.dimensions, job.width, job.tensor
    tokens = job.tokens
    along = t if job.sequence_parallel else 1
    """What is split along the sequence is split over the tensor ranks only under sequence parallelism."""
    if recompute == "full":
        return w * tokens * one.hidden  # the input; Megatron keeps it whole on every tensor rank
    query, kv, ffn = one.query_width / t, one.kv_width / t, one.ffn / t
    residual = tokens * one.hidden / along
    mask = 1 if engine.dropout else 0
    scores = 0.0
    if not engine.flash_attention:
        scores = (
            (2 * w + mask) * one.heads / t * tokens * job.sequence
            if engine.dropout
            else w * one.heads / t * tokens * job.sequence
        )
    projections = tokens * w * (query + 2 * (query if engine.repeats_kv else kv))
    attention_output = tokens * w * query
    rotary = tokens * engine.rotary_extra * (query + kv)
    norm = w if not one.gated_mlp and engine.dropout else engine.norm_input
    norms = residual * (2 * norm + 2 * w + 2 * engine.norm_extra)
    masks = residual * 2 * mask
    tensors = engine.mlp_tensors if one.gated_mlp else 2
    mlp = tokens * w * ffn * tensors
    everything = norms + masks + projections + rotary + scores + attention_output + mlp
    if recompute == "none":
        return everything
    if engine.selective == "scores":
        return everything - scores
    # Outputs of matrix products and of attention, and the layer's input.
    products = w * (tokens * (query + 2 * kv) + residual + tokens * (2 if one.gated_mlp else 1) * ffn + residual)
    if engine.selective == "alternate":
        products /= 2
    return w * residual + products + attention_output
