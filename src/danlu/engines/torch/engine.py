"""The torch engine: one model, its optimizer and its device."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danlu import heartbeat
from danlu.engines.base import NOTHING_SUPERVISED, Batch, Observed, Sampling, Snapshot, StepResult, StepSource, Trace, Vitals
from danlu.engines.hugging_face import hugging_face_files, weights_files
from danlu.engines.torch import adapter_weights, replicas, selftest
from danlu.engines.torch.clock import Clock, count_waits
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.device import device_for, matmul_peak, wait
from danlu.engines.torch.generate import KeyValueCache, generate
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.loader import batches
from danlu.engines.torch.loss import IGNORED, Criterion
from danlu.engines.torch.meter import metered
from danlu.engines.torch.objective import Objective
from danlu.engines.torch.objectives import objective
from danlu.engines.torch.optimizer import Optimizer
from danlu.engines.torch.parallelise import allocate, parallelise
from danlu.engines.torch.pieces import local
from danlu.engines.torch.pipeline import Pipeline
from danlu.engines.torch.process import keep_freed_memory
from danlu.engines.torch.profile import StepProfile, copy_peak
from danlu.engines.torch.rounded import fill_rounded, is_scale
from danlu.engines.torch.shard import synchronise
from danlu.engines.torch.slices import written_slices
from danlu.engines.torch.snapshot import (
    Buffers,
    optimizer_states,
    random_states,
    set_random_states,
    write,
)
from danlu.engines.torch.statistics import Observer, observing
from danlu.engines.torch.trace import traced_step
from danlu.engines.torch.vitals import samples
from danlu.engines.torch.weights import DTYPES, read_weights, write_weights
from danlu.errors import UserError
from danlu.model.adapters import is_adapter
from danlu.model.drawing import HEAD, draw
from danlu.model.mup import multipliers
from danlu.model.shape import ModelShape
from danlu.model.stages import split_layers
from danlu.recipe import Recipe


class TorchEngine:
    """See ``danlu.engines.base.Engine``."""

    def __init__(self, recipe: Recipe, shape: ModelShape, scratch: Path | None = None) -> None:
        """``scratch`` is a folder for what is offloaded to disk, unless the recipe names one; else the system's."""
        self.recipe, self.shape = recipe, shape
        self._device = device_for(recipe.train.device)
        self.device = str(self._device)
        if self._device.type == "cpu" and "disk" not in (recipe.memory.offload_optimizer, recipe.memory.offload_parameters):
            keep_freed_memory()  # who offloads would rather have it back
        self.dtype = DTYPES[recipe.train.precision]
        self._exact = False
        torch.manual_seed(recipe.train.seed)
        self.layout = self._join()
        self.rank, self.data_rank = self.layout.rank, self.layout.data_rank
        offload = Path(recipe.memory.offload_folder or scratch or tempfile.gettempdir()).expanduser()
        self.clock = Clock(self._device)
        if self.layout.mesh is not None:
            count_waits(self.clock)
        self.stages = parallelise(shape, recipe, self.layout, self._device, self._ranges())
        self._allocate(offload)
        self.pipeline: Pipeline | None = None
        if self.layout.pipeline > 1:
            if self.dtype != torch.float32:  # the schedule calls the stages, and backward passes between them
                for stage in self.stages:
                    setattr(stage, "forward", partial(self._in_precision, stage.forward))  # noqa: B010
            self.pipeline = Pipeline(self.stages, shape, self.layout, recipe.parallel.schedule, recipe.accumulation, self._device)
        for stage in self.stages:
            stage.register_forward_pre_hook(lambda *_: heartbeat.tick())  # every micro-batch gets it on
            self.clock.watch(stage)
        self.parameters = {name: parameter for stage in self.stages for name, parameter in stage.named_parameters()}
        # With tied embeddings the last pipeline rank has a second copy of the first rank's.
        shadows = {HEAD} & self.parameters.keys() if shape.tied_embeddings else set()
        self.trained = {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}
        rates = {
            name: 1.0 if recipe.train.lora else multipliers(shape, name, recipe.model.mup).learning_rate for name in self.trained
        }
        self.optimizer = Optimizer(self.trained, shadows & self.trained.keys(), recipe, self.layout, offload, rates)
        self.own = {name: parameter for name, parameter in self.parameters.items() if name not in shadows}
        self.buffers = Buffers()
        self.observer: Observer | None = None
        self.profile: StepProfile | None = None

    def _join(self) -> Layout:
        """This process's place among those that a launcher started."""
        return Layout.start(self.recipe, self._device)

    def _ranges(self) -> list[range]:
        """Which layers are on which stage of the pipeline."""
        return split_layers(self.shape, self.recipe.parallel.pipeline * self.recipe.parallel.stages_a_rank)

    def _allocate(self, offload: Path) -> None:
        allocate(self.stages, self.shape, self.recipe, self._device, offload)

    def held_bytes(self) -> dict[str, int]:
        """Of the tensors; what is in a mapped file counts too."""
        moments = [value for state in self.optimizer.adamw.state.values() for value in state.values()]
        held = {"parameters": [*self.parameters.values(), *self.objective.frozen], "optimizer": moments}
        return {kind: sum(local(tensor).nbytes for tensor in tensors) for kind, tensors in held.items()}

    @cached_property
    def objective(self) -> Objective:
        """Made for the first step, since a model that is only used needs no teacher."""
        return objective(self.recipe, self.shape, self.layout, self._device, self.stages[0])

    @property
    def model(self) -> CausalLM:
        """What this process holds of the model, where there is no pipeline; without a layout, all of it."""
        assert self.pipeline is None
        return self.stages[0]

    def versions(self) -> dict[str, str]:
        """torch, and the threads that it computes with on a CPU."""
        return {"torch": str(torch.__version__), "torch_threads": str(torch.get_num_threads())}

    def agree(self, flag: bool) -> bool:
        """Whether any process of the layout says so."""
        return self.layout.any(flag)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, by rank."""
        return self.layout.gather(value)

    def self_test(self) -> None:
        """Every group of the layout, with known numbers."""
        selftest.run(self.layout, self._device, self.pipeline.pair if self.pipeline else None)

    def replicas_differ(self) -> list[str]:
        """Parameters that are not the same bits on all ranks that replicate them."""
        return replicas.differences(self.parameters, self.layout, self.pipeline.pair if self.pipeline else None)

    def vitals(self) -> Vitals:
        """Sampled weights, and the optimizer's settings in force."""
        return Vitals(samples(self.trained), self.optimizer.vitals())

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw each tensor on the CPU from the seed and its name, so that all engines, layouts and devices start alike."""
        for name in self.base():
            if not is_scale(name):
                drawn = draw(self.shape, name, self.recipe.train.seed, self.recipe.model.mup)
                fill_rounded(self.parameters, name, torch.from_numpy(drawn))
        adapter_weights.draw(self.parameters, self.recipe.train.seed, self._device)

    @torch.no_grad()
    def import_weights(self, folder: Path) -> None:
        """Safetensors of a Hugging Face folder."""
        read_weights(self.base(), self.shape, folder, hugging_face_files(folder))
        adapter_weights.draw(self.parameters, self.recipe.train.seed, self._device)

    def base(self) -> dict[str, Tensor]:
        """The model's own parameters, without adapters."""
        return {name: parameter for name, parameter in self.parameters.items() if not is_adapter(name)}

    @torch.no_grad()
    def export_weights(self, folder: Path, dtype: str) -> None:
        """Safetensors of a Hugging Face folder."""
        assert self.layout.mesh is None
        adapters = self.recipe.train.lora
        write_weights(self.own if adapters is None else adapter_weights.merged(self.own, adapters), folder, DTYPES[dtype])

    def export_adapter(self, folder: Path) -> None:
        """The adapter alone, as PEFT has it."""
        assert self.layout.mesh is None and self.recipe.train.lora is not None
        adapter_weights.write_adapter(self.own, self.recipe.train.lora, str(self.recipe.model.hugging_face), folder)

    def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
        """Batches as tensors in host memory."""
        return batches(source, steps, workers, pin_memory=self._device.type == "cuda")

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        """Micro-batches are weighted by their supervised tokens, so that any split gives the gradient of the whole batch."""
        self.clock.begin()
        scale = self.optimizer.loss_scale
        mean, supervised = self._backward(batch)
        if supervised == 0:
            return StepResult(mean, 0, 0.0, NOTHING_SUPERVISED, scale)
        if self.observer is not None:
            self.observer.gradients(scale)
        with self.clock.during("optimizer"):
            norm, skipped = self.optimizer.step(learning_rate, math.isfinite(mean))
        if self.observer is not None and skipped is None:
            self.observer.updates()
        reported, measured = self.objective.told(mean, supervised, self.layout)
        return StepResult(reported, supervised, norm, skipped, scale, self.clock.take(), measured)

    def gradient_norm(self, batch: Batch) -> float:
        """By the same backward pass as a step's."""
        tensors = {name: torch.as_tensor(array) for name, array in batch.items()}
        norm = self.optimizer.norm_alone() if self._backward(tensors)[1] else 0.0
        self.objective.sums.zero_()  # a step's are its own
        return norm

    def _backward(self, batch: Batch) -> tuple[float, int]:
        """Gradients of the mean loss, times the loss scale. Returns (that loss, what supervises), of all processes."""
        assert "samples" in batch or not self.recipe.train.drops
        objective = self.objective
        batch = objective.rewritten(batch)
        supervised = int(self.layout.sum(objective.count(batch).to(self._device), "data"))
        if supervised == 0:
            return math.nan, 0
        # Sharding averages gradients over the data ranks; the factor turns that into the sum that they are here.
        weight = self.optimizer.loss_scale * self.layout.data / supervised
        if self.pipeline is not None:
            with self.clock.during("backward"):  # and, inside it, forward
                total = self.pipeline.run(self._placed(_joined(batch)), weight, train=True)
                self.pipeline.sum_tied_gradients()
        else:
            total = torch.zeros((), device=self._device)
            micro_batches = batch["inputs"].shape[0]
            for micro in range(micro_batches):
                # From ZeRO 2 on no whole gradients are kept, so every micro-batch communicates.
                synchronise(self.model, micro == micro_batches - 1 or self.recipe.parallel.zero_stage >= 2)
                loss = self._loss({name: tensor[micro] for name, tensor in batch.items()}, weight, objective.criterion)
                with self.clock.during("backward"):
                    loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
        return self.layout.sum(total, "data").item() / self.layout.data / self.optimizer.loss_scale, supervised

    def metered_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, list[dict[str, int]]]:
        """Of the first step the meter tells less than of the others, since it makes the optimizer's states on the way."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        with metered(self) as meter:
            result = self.train_step(batch, learning_rate)
        found = meter.result()
        if self._device.type == "cuda":
            found["device"] = torch.cuda.max_memory_allocated(self._device)
        return result, self.layout.gather(found)

    def traced_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, Trace]:
        """Outputs, gradients and updates in host memory."""
        return traced_step(self, batch, learning_rate)

    def observed_step(self, batch: Batch, learning_rate: float, histograms: bool) -> tuple[StepResult, Observed]:
        """Activations only without ``train.compile``."""
        with observing(self, histograms) as self.observer:
            try:
                result = self.train_step(batch, learning_rate)
                return result, self.observer.result()
            finally:
                self.observer = None

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """In the training precision; each data rank takes its rows, and every process gets the sums."""
        arrays = {name: torch.as_tensor(array) for name, array in batch.items()}
        return self._evaluated(arrays, lambda _: None), int((arrays["targets"] != IGNORED).sum())

    def judge(self, batch: Batch) -> tuple[float, int, dict[str, float]]:
        """By the objective of training."""
        arrays = {name: torch.as_tensor(array) for name, array in batch.items()}
        total, sums = self.objective.told(self._evaluated(arrays, self.objective.criterion), 1, self.layout)
        return total, int(self.objective.count(arrays)), sums

    @torch.no_grad()
    def _evaluated(self, arrays: Mapping[str, Tensor], criterion: Callable[[Batch], Criterion | None]) -> float:
        mine = {name: tensor.chunk(self.layout.data)[self.data_rank] for name, tensor in arrays.items()}
        if self.pipeline is not None:
            total = self.pipeline.run(self._placed(mine), 1.0, train=False)
        else:
            total = torch.zeros((), device=self._device)
            for first in range(0, mine["inputs"].shape[0], self.recipe.micro_batch):
                rows = {name: tensor[first : first + self.recipe.micro_batch] for name, tensor in mine.items()}
                total += self._loss(rows, 1.0, criterion)
        nats: float = self.layout.sum(total, "data").item()
        return nats

    def generate(self, tokens: list[int], sampling: Sampling, end_id: int | None) -> Iterator[int]:
        """In FP32. UserError: the prompt fills the model's context."""
        if not tokens:
            raise UserError("the prompt is empty and the tokenizer has no token that begins a document; give a prompt")
        if len(tokens) >= self.shape.max_sequence_length:
            room = self.shape.max_sequence_length
            raise UserError(
                f"the prompt has {len(tokens)} tokens; the model's context holds {room}, answer included: shorten the prompt"
            )
        capacity = min(len(tokens) + sampling.max_tokens, self.shape.max_sequence_length)
        layers = [int(layer) for stage in self.stages for layer in stage.model.layers]
        cache = KeyValueCache(self.shape, capacity, self._device, layers, self.layout.tensor)
        logits = partial(self._next_logits, cache)
        return generate(logits, self.layout.tell, self._device, tokens, capacity - len(tokens), sampling, end_id)

    def _next_logits(self, cache: KeyValueCache, tokens_bt: Tensor) -> Tensor | None:
        """Logits (v) after the last token, where this process sees them; in FP32 whatever the precision of training."""
        assert not self.recipe.parallel.sequence_parallel, "a single token cannot be split along the sequence"
        self._exact = True
        logits_btv = self.model(tokens_bt, cache=cache) if self.pipeline is None else self.pipeline.decode(tokens_bt, cache)
        self._exact = False
        return None if logits_btv is None else logits_btv[0, -1]

    @torch.no_grad()
    def snapshot(self, copy: bool) -> Snapshot:
        """Weights, moments and random states."""
        weights = written_slices(((name, tensor, local(tensor)) for name, tensor in self.own.items()), self.layout)
        states = written_slices(self.optimizer.tensors(set(self.own)), self.layout) | random_states(self._device)
        if copy:
            weights, states = self.buffers.copy(weights), self.buffers.copy(states)
        alone = self.layout.mesh is None
        return Snapshot({"scaler": self.optimizer.scale.state()}, lambda folder: write(weights, states, folder, self.rank, alone))

    def save(self, folder: Path) -> dict[str, Any]:
        """A snapshot that is written at once; what is returned goes to ``load``."""
        snapshot = self.snapshot(copy=False)
        snapshot.write(folder)
        return snapshot.state

    @torch.no_grad()
    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Whatever layout wrote it."""
        self.load_weights(folder)
        self.optimizer.load_tensors(optimizer_states(folder), folder)
        self.optimizer.scale.load_state(state["scaler"])
        set_random_states(folder, self.rank, self._device)

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Only the weights."""
        beside = (lambda name: is_adapter(name) or is_scale(name)) if self.recipe.train.lora else None
        read_weights(self.parameters, self.shape, folder, weights_files(folder), beside)

    def start_profile(self) -> None:
        """By torch.profiler."""
        self.profile = StepProfile(self._device)

    def end_profile(self) -> Callable[[Path], None]:
        """What ``start_profile`` began."""
        assert self.profile is not None
        profile, self.profile = self.profile, None
        wait(self._device)
        return profile.end()

    def copy_peak(self) -> float:
        """Best of some large copies."""
        return copy_peak(self._device)

    def matmul_peak(self) -> float | None:
        """Best rate of products of square matrices in the training precision."""
        return matmul_peak(self._device, self.dtype)

    def device_memory(self) -> int | None:
        """Peak bytes that tensors took on the GPU."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def close(self) -> None:
        """End the process group, whose threads must not outlive the interpreter."""
        self.layout.close()

    def _loss(self, batch: Batch, scale: float, criterion: Callable[[Batch], Criterion | None]) -> Tensor:
        tensors = self._placed(batch)
        with self._autocast():
            loss: Tensor = self.model(
                tensors["inputs"],
                tensors["positions"],
                tensors.get("documents"),
                targets_bt=tensors["targets"],
                scale=scale,
                samples_b=tensors.get("samples"),
                criterion=criterion(tensors),
            )
        return loss.sum()

    def _placed(self, batch: Batch) -> dict[str, Tensor]:
        tensors = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        if "positions" not in tensors:
            tensors["positions"] = torch.arange(tensors["inputs"].shape[-1], device=self._device).expand_as(tensors["inputs"])
        return tensors

    def _autocast(self) -> AbstractContextManager[Any]:
        exact = self._exact or self.dtype == torch.float32
        return nullcontext() if exact else torch.autocast(self._device.type, self.dtype)

    def _in_precision(self, forward: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
        with self._autocast():
            return forward(*arguments, **named)


def _joined(batch: Batch) -> dict[str, Tensor]:
    """(micro_batches, micro_batch, t) to (rows, t): the schedule cuts it into the same micro-batches again."""
    return {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
