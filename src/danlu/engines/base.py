"""The protocol between the training loop and a framework: the loop knows an engine by this file only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Batch = Mapping[str, Any]
"""Arrays by name, as danlu.data.batches makes them: numpy on the way in, the framework's tensors inside a loader."""


class StepSource(Protocol):
    """What a loader reads: the batch of any step, in O(1), in any process (picklable)."""

    def __getitem__(self, step: int) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one machine: how many, and of each the driver's name, bytes of memory and multiprocessors."""

    count: int
    name: str
    memory: int
    multiprocessors: int


LOSS_SCALE_OVERFLOW = "loss scale overflow"
"""Why fp16 training skips a step now and then: the scale was too large and is halved. No cause for worry."""


NOTHING_SUPERVISED = "no token of the batch has a target"
"""Why a step is skipped that has nothing to learn from: weight decay and old momentum alone would change the weights."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    loss: mean over the supervised tokens of the whole global batch, nats a token; NaN without any. Of pairs of answers, a pair.
    supervised: number of those tokens, or pairs.
    gradient_norm: global L2 norm before clipping, after unscaling.
    skipped: why the update was not applied, or None. Weights and moments are then exactly as before the step.
    loss_scale: the factor that was in force (1.0 without loss scaling).
    seconds: this process's in ``forward``, ``backward``, ``optimizer`` and, apart from these, waiting in ``communication``.
    measured: what else the objective tells of the step, by name.
    """

    loss: float
    supervised: int
    gradient_norm: float
    skipped: str | None
    loss_scale: float
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    measured: Mapping[str, float] = field(default_factory=dict)


MEMORY_KINDS = ("parameters", "gathered", "casts", "gradients", "optimizer", "activations", "temporaries")
"""What a process's memory is for: the parameters it keeps; whole copies of split ones while in use; half-precision copies of
weights; gradients; optimizer states; what the forward pass leaves for the backward pass; the rest."""


class TensorSums(NamedTuple):
    """Sums over all entries of a tensor, or of what a module gives out for a batch, wherever its pieces are.

    ``spread`` counts entries (2, 256) by half-octave of the magnitude, as ``danlu.watch.histogram.compressed`` takes them.
    """

    entries: float
    total: float
    squares: float
    largest: float
    """Of the magnitudes."""
    zeros: float
    spread: np.ndarray | None


class Observed(NamedTuple):
    """What a step did inside the model.

    tensors: by kind (parameter after the step, gradient before clipping, update, activation) and name of the tensor or module in
    the Hugging Face layout. Parameters and updates are missing where the step was skipped.
    attention_logits: the largest of each attention module.
    """

    tensors: dict[tuple[str, str], TensorSums]
    attention_logits: dict[str, float]


Arrays = dict[str, np.ndarray]


class Trace(NamedTuple):
    """What a step computed, in FP32 with the axes of files, by the name of a module or a parameter, in the order of computing."""

    outputs: Arrays
    """Of every module, in the first micro-batch."""
    gradients: Arrays
    """Of every parameter, before clipping."""
    updates: Arrays
    """What was added to every parameter."""


@dataclass(frozen=True)
class Sampling:
    """How a continuation is drawn. temperature 0 is greedy; top_k 0 keeps all; top_p 1 keeps all."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


@dataclass(frozen=True)
class Snapshot:
    """What one process keeps of itself in a checkpoint.

    state: goes to ``Engine.load`` again (JSON).
    write: puts this process's files into a folder and returns them; may be called from another thread.
    """

    state: dict[str, Any]
    write: Callable[[Path], list[Path]]


@dataclass(frozen=True)
class Vitals:
    """What can be told of a process's weights and optimizer without a pass over them.

    samples: up to SAMPLED weights of each parameter that this process holds (of its own piece), float32, from the same places
    at every call.
    optimizer: the settings in force after the last step: ``learning_rate`` (without the factors of µP), ``beta1``, ``beta2``,
    ``epsilon``, ``weight_decay`` of the matrices; ``decayed_vectors``, 1-D parameters that are decayed; ``left_out``, parameters
    that it does not have or that need no gradient; ``kept_gradients``, parameters whose gradient was not freed; ``updates``, made
    so far by its own count.
    """

    samples: dict[str, np.ndarray]
    optimizer: dict[str, float]


SAMPLED = 256


class Engine(Protocol):
    """One model, its optimizer and its device, in one framework."""

    device: str
    """Such as ``cpu`` or ``cuda:0``."""
    rank: int
    """Of this process among those of the layout; 0 writes what a run leaves, all call the same methods in the same order."""
    data_rank: int
    """Which slice of every global batch is this process's."""

    def versions(self) -> dict[str, str]:
        """The framework and its version, for the record."""

    def agree(self, flag: bool) -> bool:
        """Whether any process of the layout says so; all wait for all."""

    def gather(self, value: Any) -> list[Any]:
        """Every process's small value (JSON), by rank; all wait for all."""

    def self_test(self) -> None:
        """Try every group of the layout with known numbers. DanluError: a wrong result, or no answer."""

    def replicas_differ(self) -> list[str]:
        """Which parameters differ between which ranks that replicate them; none, where all is well."""

    def vitals(self) -> Vitals:
        """A few weights and the optimizer's settings of this process; no process waits for another."""

    def initialise(self) -> None:
        """Draw the initial weights from the seed."""

    def import_weights(self, folder: Path) -> None:
        """Read safetensors in the Hugging Face layout. UserError: missing, extra, misshapen or non-finite tensors."""

    def export_weights(self, folder: Path, dtype: str) -> None:
        """Write safetensors in the Hugging Face layout; dtype is fp32, bf16 or fp16. From one process that holds all of it."""

    def export_adapter(self, folder: Path) -> None:
        """Write the adapters alone, as PEFT has them. From one process that holds all of it, with ``train.lora``."""

    def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
        """The batches of these steps, in order, prefetched by worker processes."""

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        """Forward, backward, clip and update for one global batch (micro_batches, micro_batch, sequence_length)."""

    def gradient_norm(self, batch: Batch) -> float:
        """Global L2 norm, unscaled, of the gradient that ``train_step`` takes of such a batch; nothing is updated or kept."""

    def metered_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, list[dict[str, int]]]:
        """``train_step``, followed operator by operator, and what each process's memory was for at most, by rank, in bytes:
        ``peak``, each of MEMORY_KINDS at its own largest and as ``peak_<kind>`` at the peak, ``offloaded`` (in host memory beside
        a GPU, or in files; no part of the peak), and ``device``, a GPU's own count of the peak.
        """

    def traced_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, Trace]:
        """``train_step``, with what it computed on the way; in one process without recomputation and compilation."""

    def observed_step(self, batch: Batch, learning_rate: float, histograms: bool) -> tuple[StepResult, Observed]:
        """``train_step``, to the same bits, and sums over weights, gradients, updates and activations; all get the same."""

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """(sum of the negative log-likelihood in nats, supervised tokens) of one batch (batch, sequence_length).

        Every process gets the whole batch and the sums over it; the batch divides by the data ranks.
        """

    def judge(self, batch: Batch) -> tuple[float, int, dict[str, float]]:
        """As ``evaluate``, by what validation measures for the objective: (sum of the loss, tokens or pairs, other sums)."""

    def generate(self, tokens: list[int], sampling: Sampling, end_id: int | None) -> Iterator[int]:
        """Continue the prompt token by token until end_id (not yielded) or max_tokens."""

    def snapshot(self, copy: bool) -> Snapshot:
        """Weights, optimizer and random states of this process; all call.

        With ``copy`` as they are now, in host memory that the next such snapshot takes over; else as they are when written.
        """

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read what snapshots wrote, in whatever layout; training then continues, in the same one bit for bit."""

    def load_weights(self, folder: Path) -> None:
        """Only the weights of what snapshots wrote."""

    def start_profile(self) -> None:
        """Follow operators, their shapes, and memory from now on."""

    def end_profile(self) -> Callable[[Path], None]:
        """Follow them no longer; what is returned writes a Chrome trace (.json.gz)."""

    def copy_peak(self) -> float:
        """Measured bytes a second that copies in this device's memory read and write together."""

    def matmul_peak(self) -> float | None:
        """Measured matrix-product rate of this device in the training precision, FLOP/s; None where that is emulated."""

    def held_bytes(self) -> dict[str, int]:
        """Bytes of the ``parameters`` and of the ``optimizer`` states that this process keeps."""

    def device_memory(self) -> int | None:
        """Peak bytes allocated on the accelerator; None on a CPU, where resident memory tells."""

    def close(self) -> None:
        """Leave the other processes, when all have done their work; the engine is of no use afterwards."""
