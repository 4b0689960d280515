"""The signals that a run records. Names are ``group/name``, and ``group/name@rank`` for what is one process's own."""

from __future__ import annotations

from typing import NamedTuple

TENSOR_STATISTICS = ("rms", "mean", "max", "zeros")
"""Of the entries of a tensor: root of the mean square, mean, largest magnitude, share that is exactly 0."""
TENSOR_KINDS = ("parameter", "gradient", "update", "activation")
"""What the statistics are of: weights after the step; gradients before clipping, unscaled; what the step changed the weights by
(decay included); what a module gave out in the forward pass."""

SIGNALS = {
    "train/loss": "loss of the step's own batch, nats a token; of pairs of answers, nats a pair",
    "train/perplexity": "e to the loss",
    "train/gradient_norm": "global L2 norm of the gradient before clipping",
    "train/clip_rate": "share of the last 100 steps whose gradient was clipped",
    "train/learning_rate": "learning rate of the step",
    "train/loss_scale": "factor of the fp16 loss scaling",
    "train/skipped_steps": "steps so far whose update was not applied",
    "train/tokens_per_second": "tokens a second over all processes",
    "train/mfu": "share of the matmul peak that is used",
    "train/objective": "distillation: what is minimised, cross-entropy and divergence, nats a token",
    "train/divergence": "distillation: of the model's probabilities from the teacher's, nats a token",
    "train/margin": "preferences: reward of the better answer less that of the other, mean over pairs",
    "train/accuracy": "preferences: share of the pairs whose margin is positive",
    "train/chosen_reward": "preferences: beta x log-probability of the better answer, less that before training",
    "train/rejected_reward": "preferences: the same of the other answer",
    "validation/loss": "loss on held-out data, nats a token",
    "validation/perplexity": "e to the validation loss",
    "validation/ratio": "validation loss / mean of the last training losses",
    "validation/objective": "these six are as in training, on held-out data",
    "validation/divergence": "as train/divergence",
    "validation/margin": "as train/margin",
    "validation/accuracy": "as train/accuracy",
    "validation/chosen_reward": "as train/chosen_reward",
    "validation/rejected_reward": "as train/rejected_reward",
    "time/step": "seconds of a step",
    "time/data_wait": "seconds of a step that it waited for its batch",
    "time/forward": "seconds of a step in the forward pass, waits for other processes apart",
    "time/backward": "seconds of a step in the backward pass, recomputation included, waits for other processes apart",
    "time/communication": "seconds of a step that it waited for other processes",
    "time/optimizer": "seconds of a step in clipping and the update, waits for other processes apart",
    "time/other": "seconds of a step in none of the above: checks, statistics",
    "time/recording": "seconds since the step before spent on recording: statistics, counters, records",
    "time/checkpoint": "seconds that training stood still for a checkpoint",
    "time/validation": "seconds that training stood still for a validation",
    "time/doctor": "seconds since the step before spent on the doctor: invariants, probes, diagnoses",
    "memory/resident_bytes": "memory of the process",
    "memory/device_bytes": "device memory in use at most",
    "memory/parameters_bytes": "weights that the process holds",
    "memory/optimizer_bytes": "optimizer states that the process holds",
    "memory/gradients_bytes": "gradients at most; this and the next ones where watch.memory meters a step",
    "memory/activations_bytes": "what the forward pass leaves for the backward pass, at most",
    "memory/gathered_bytes": "whole copies of split weights while in use, at most",
    "memory/casts_bytes": "half-precision copies of weights, at most",
    "memory/temporaries_bytes": "all other tensors, at most",
    "memory/offloaded_bytes": "weights and states in host memory beside a GPU, or in files",
    "system/cpu_cores": "cores that the process keeps busy",
    "system/cpu_share": "share of the machine's cores that are busy",
    "system/memory_available_bytes": "memory that can still be used on the machine",
    "system/disk_read_bytes_per_second": "read from the machine's disks",
    "system/disk_write_bytes_per_second": "written to the machine's disks",
    "system/network_sent_bytes_per_second": "sent over the machine's network interfaces, loopback apart",
    "system/network_received_bytes_per_second": "received over them",
    "system/gpu_share": "share of the time in which a kernel ran on the process's GPU",
    "system/gpu_memory_bytes": "memory in use on the process's GPU, by whatever process",
    "system/gpu_watts": "power that the process's GPU draws",
    "tokens/supervised_share": "share of the batch's positions that have a target",
    "tokens/padding_share": "share of the batch's positions that belong to no text",
    "tokens/duplicate_share": "share of the batch's runs of 32 tokens that stand in the batch before",
    "tokens/document_length": "histogram of the lengths of the documents, or parts of them, in the batch",
    "layer/NAME/parameter_rms": "root mean square of the weights of one tensor; likewise _mean, _max, _zeros",
    "layer/NAME/gradient_rms": "of its gradient before clipping; likewise _mean, _max, _zeros",
    "layer/NAME/gradient_norm": "L2 norm of that",
    "layer/NAME/update_rms": "of what the step changed it by; likewise _mean, _max, _zeros",
    "layer/NAME/update_ratio": "RMS of a tensor's update / RMS of its weights",
    "layer/NAME/activation_rms": "of the output of one module over the batch; likewise _mean, _max, _zeros",
    "layer/NAME/attention_logit_max": "largest attention logit of one layer, after scaling, where the mask lets it be seen",
    "sample/NAME/moved": "share of a parameter's weights that are not what they were at the start",
    "weights/bf16_share": "share of the weights that moved that bfloat16 holds without rounding",
    "weights/tied_difference": "largest difference between embeddings that are to be one",
    "optimizer/NAME": "beta1, beta2, epsilon, weight_decay, learning_rate in force; decayed_vectors, left_out, kept_gradients, "
    "updates: how many",
    "batch/supervised": "share of the tokens that have a target",
    "batch/target_offset_K": "share of the targets that are the token K places behind their input",
    "batch/end_supervised": "share of the ends of documents that are a target",
    "batch/entropy": "entropy of the tokens' frequencies in a batch, nats",
    "batch/repeated": "share of the samples that came before in the same epoch",
    "batch/same_order": "of the samples seen in an epoch before, the share that came at one distance",
    "batch/held_out": "share of the samples that validation measures too",
    "batch/neighbours": "share of the samples that go on where the one before ends",
    "batch/hash": "a number made of all tokens of the batch",
    "batch/shared": "share of the data ranks that have the batch of another one",
    "retained/loss": "loss on the text of doctor.retain, nats a token",
    "probe/batch_loss": "loss of the step's batch in an evaluation ahead of it",
    "probe/batch_loss_after": "the same after the step",
    "probe/offset_K": "loss with the token K places behind the input as target",
    "probe/again": "difference of two evaluations of the same",
    "probe/future": "change of the loss with the tokens behind",
    "probe/document": "change of the loss with the document before",
    "probe/far": "change of the loss with all positions moved to the end of the context",
    "probe/unplaced": "change of the loss with all positions 0",
    "probe/accumulated": "gradient norm of two samples one after the other / of both at once",
    "layer/NAME/parameter": "histogram of the weights of one tensor; likewise gradient, update, activation",
}
"""Every signal and what it holds, units included. NAME is a tensor's or a module's name in the Hugging Face layout."""


class Name(NamedTuple):
    """A signal's name in parts."""

    signal: str
    rank: int | None


def split_rank(name: str) -> Name:
    """``system/cpu_cores@3`` to (``system/cpu_cores``, 3); without a rank it is None."""
    signal, at, rank = name.rpartition("@")
    return Name(signal, int(rank)) if at and rank.isdecimal() else Name(name, None)


def of_rank(signal: str, rank: int) -> str:
    """The name of one process's own value."""
    return f"{signal}@{rank}"
