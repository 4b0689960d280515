"""The torch engine: one model, its optimizer and its device."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from danlu.engines.base import Batch, Sampling, StepResult, StepSource
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.generate import generate
from danlu.engines.torch.loader import batches
from danlu.engines.torch.loss import IGNORED, linear_cross_entropy
from danlu.engines.torch.optimizer import Optimizer
from danlu.engines.torch.process import keep_freed_memory
from danlu.engines.torch.weights import DTYPES, own_tensors, read_weights, write_file, write_weights
from danlu.errors import UserError
from danlu.model.initialisation import initial
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

_RANDOM_CPU = "random.cpu"
_RANDOM_CUDA = "random.cuda"
PEAK_SECONDS = 0.3
"""How long the matmul peak is measured; the best product of that time counts, since others may use the machine too."""


class TorchEngine:
    """See ``danlu.engines.base.Engine``."""

    def __init__(self, recipe: Recipe, shape: ModelShape) -> None:
        self.recipe, self.shape = recipe, shape
        self._device = _device(recipe.train.device)
        self.device = str(self._device)
        if self._device.type == "cpu":
            keep_freed_memory()
        self.dtype = DTYPES[recipe.train.precision]
        torch.manual_seed(recipe.train.seed)
        with torch.device("meta"):
            self.model = CausalLM(shape)
        self.model.to_empty(device=self._device)
        self.model.tie()  # to_empty gives every module a tensor of its own
        self.model.model.set_frequencies(shape)
        self.decoder: torch.nn.Module = self.model.model
        if recipe.train.compile:
            self.decoder = torch.compile(self.model.model)  # type: ignore[assignment]
        self.optimizer = Optimizer(self.model, recipe, self._device)

    def versions(self) -> dict[str, str]:
        """torch, and the threads that it computes with on a CPU."""
        return {"torch": str(torch.__version__), "torch_threads": str(torch.get_num_threads())}

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights on the CPU, so that a seed gives the same ones on every device."""
        random = torch.Generator().manual_seed(self.recipe.train.seed)
        for name, parameter in own_tensors(self.model).items():
            parameter.copy_(torch.empty(parameter.shape).normal_(*initial(self.shape, name), generator=random))

    @torch.no_grad()
    def import_weights(self, folder: Path) -> None:
        """Safetensors of a Hugging Face folder."""
        read_weights(self.model, folder)

    def export_weights(self, folder: Path, dtype: str) -> None:
        """Safetensors of a Hugging Face folder."""
        write_weights(own_tensors(self.model), folder, DTYPES[dtype])

    def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
        """Batches as tensors in host memory."""
        return batches(source, steps, workers, pin_memory=self._device.type == "cuda")

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        """Micro-batches are weighted by their supervised tokens, so that any split gives the gradient of the whole batch."""
        supervised = int((batch["targets"] != IGNORED).sum())
        scale = self.optimizer.loss_scale
        total = torch.zeros((), device=self._device)
        for micro in range(batch["inputs"].shape[0]):
            loss = self._loss({name: tensor[micro] for name, tensor in batch.items()}, scale / max(supervised, 1))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        mean = total.item() / scale
        norm, skipped = self.optimizer.step(learning_rate, math.isfinite(mean))
        return StepResult(mean, supervised, norm, skipped, scale)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """In the training precision."""
        arrays = {name: torch.as_tensor(array) for name, array in batch.items()}
        return self._loss(arrays, 1.0).item(), int((arrays["targets"] != IGNORED).sum())

    def generate(self, tokens: list[int], sampling: Sampling, end_id: int | None) -> Iterator[int]:
        """In FP32. UserError: the prompt fills the model's context."""
        if not tokens:
            raise UserError("the prompt is empty and the tokenizer has no token that begins a document; give a prompt")
        if len(tokens) >= self.shape.max_sequence_length:
            room = self.shape.max_sequence_length
            raise UserError(
                f"the prompt has {len(tokens)} tokens; the model's context holds {room}, answer included: shorten the prompt"
            )
        return generate(self.model, self.shape, tokens, sampling, end_id)

    def save(self, folder: Path) -> dict[str, Any]:
        """model.safetensors (the layout of an export) and optimizer.safetensors (moments, random states)."""
        write_weights(own_tensors(self.model), folder, torch.float32)
        state = {name: tensor.cpu() for name, tensor in self.optimizer.tensors().items()}
        state[_RANDOM_CPU] = torch.get_rng_state()
        if self._device.type == "cuda":
            state[_RANDOM_CUDA] = torch.cuda.get_rng_state(self._device)
        write_file(state, folder / "optimizer.safetensors")
        return {"scaler": self.optimizer.state()}

    @torch.no_grad()
    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """The reverse of ``save``."""
        read_weights(self.model, folder)
        tensors = load_file(folder / "optimizer.safetensors")
        torch.set_rng_state(tensors.pop(_RANDOM_CPU))
        cuda = tensors.pop(_RANDOM_CUDA, None)
        if cuda is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(cuda, self._device)
        self.optimizer.load_tensors(tensors)
        self.optimizer.load_state(state["scaler"])

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Only the weights."""
        read_weights(self.model, folder)

    def matmul_peak(self) -> float | None:
        """Best rate of products of square matrices in the training precision, over a third of a second."""
        if self._device.type == "cpu" and self.dtype == torch.float16:
            return None  # emulated on most CPUs: slower than the FP32 that is in the rest of a step
        size = 2048 if self._device.type == "cpu" else 8192
        left = torch.ones(size, size, dtype=self.dtype, device=self._device)
        best, started = math.inf, time.perf_counter()
        while time.perf_counter() - started < PEAK_SECONDS or best == math.inf:
            self._wait()
            start = time.perf_counter()
            left @ left
            self._wait()
            best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best

    def device_memory(self) -> int | None:
        """Peak bytes that tensors took on the GPU."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def _loss(self, batch: Batch, scale: float) -> Tensor:
        tensors = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        with self._autocast():
            hidden_btd = self.decoder(tensors["inputs"], tensors.get("positions"), tensors.get("documents"))
            return linear_cross_entropy(hidden_btd, self.model.lm_head.weight, tensors["targets"], scale)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, self.dtype) if self.dtype != torch.float32 else nullcontext()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device: cuda was asked for, but torch sees no GPU here; use train.device=cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
