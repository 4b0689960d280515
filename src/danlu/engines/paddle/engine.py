"""The paddle engine: one model, its optimizer and its device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from danlu import heartbeat
from danlu.engines.base import NOTHING_SUPERVISED, Batch, Observed, Sampling, Snapshot, StepResult, StepSource, Trace, Vitals
from danlu.engines.hugging_face import hugging_face_files, weights_files
from danlu.engines.paddle import fully_sharded, lora, replicas, selftest
from danlu.engines.paddle.auto_parallel import Cache, Pieces
from danlu.engines.paddle.clock import Clock
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.device import device_for, matmul_peak
from danlu.engines.paddle.fully_sharded import held
from danlu.engines.paddle.generate import KeyValueCache, generate
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.loader import batches
from danlu.engines.paddle.loss import IGNORED
from danlu.engines.paddle.masters import Masters
from danlu.engines.paddle.optimizer import Optimizer
from danlu.engines.paddle.parallelise import parallelise
from danlu.engines.paddle.pipeline import Pipeline
from danlu.engines.paddle.process import keep_freed_memory, threads
from danlu.engines.paddle.profile import StepProfile, copy_peak
from danlu.engines.paddle.slices import fill, written
from danlu.engines.paddle.snapshot import Buffers, optimizer_states, write
from danlu.engines.paddle.statistics import Observer, observing
from danlu.engines.paddle.trace import traced_step
from danlu.engines.paddle.vitals import samples
from danlu.engines.paddle.weights import read_weights, write_weights
from danlu.errors import UserError
from danlu.model.adapters import initial, is_adapter
from danlu.model.drawing import draw
from danlu.model.families import tensor_shapes
from danlu.model.mup import multipliers
from danlu.model.shape import ModelShape
from danlu.model.stages import split_layers
from danlu.recipe import Recipe

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class PaddleEngine:
    """See ``danlu.engines.base.Engine``."""

    def __init__(self, recipe: Recipe, shape: ModelShape) -> None:
        self.recipe, self.shape = recipe, shape
        self.device = device_for(recipe)
        if self.device == "cpu":
            keep_freed_memory()
        self.dtype = DTYPES[recipe.train.precision]
        self.level = "O1" if self.dtype == "float32" else recipe.train.amp_level
        self._exact = False
        self.layout = Layout.start(recipe)
        self.rank, self.data_rank = self.layout.rank, self.layout.data_rank
        self.pipeline: Pipeline | None = None
        if self.layout.pipeline > 1:
            ranges = split_layers(shape, recipe.parallel.pipeline * recipe.parallel.stages_a_rank)
            build = lambda number: parallelise(shape, recipe, self.layout, ranges[number])  # noqa: E731
            self.pipeline = Pipeline(build, recipe.parallel.stages_a_rank, shape, self.layout)
            self.stages = self.pipeline.stages
        else:
            self.stages = [parallelise(shape, recipe, self.layout, range(shape.layers))]
        for stage in self.stages:
            stage.register_forward_pre_hook(lambda *_: heartbeat.tick())  # every micro-batch gets it on
        self.parameters: dict[str, Tensor] = {
            name: parameter for stage in self.stages for name, parameter in stage.named_parameters()
        }
        self.apart: Pieces | Masters | None = None
        """What is updated, where that is not the model's own parameters."""
        if self.layout.auto:
            self.apart = Pieces(self.model, self.layout)
        elif self.level == "O2":
            self.apart = Masters(self.stages, self.dtype)
        if self.apart is not None:
            self.parameters = self.apart.own
        if self.layout.zero_stage == 3:
            fully_sharded.split(self.stages)
        adapted = recipe.train.lora is not None
        self.trained = {name: each for name, each in self.parameters.items() if is_adapter(name) or not adapted}
        rates = {name: 1.0 if adapted else multipliers(shape, name, recipe.model.mup).learning_rate for name in self.trained}
        self.optimizer = Optimizer(self.trained, recipe, rates, self.layout, shape.tied_embeddings)
        self.shapes = tensor_shapes(shape) | lora.shapes(shape, recipe.train.lora)
        """Of the whole tensors, as files have them."""
        self.names = {parameter.name: name for name, parameter in self.parameters.items()}
        """The Hugging Face name by paddle's own."""
        self.buffers = Buffers()
        self.clock = Clock()
        self.observer: Observer | None = None
        self.profile: StepProfile | None = None

    @property
    def model(self) -> CausalLM:
        """What this process holds of the model, where there is no pipeline; without a layout, all of it."""
        assert self.pipeline is None
        return self.stages[0]

    def versions(self) -> dict[str, str]:
        """paddle, and the threads that it computes with on a CPU."""
        return {"paddle": str(paddle.__version__), "paddle_threads": str(threads())}

    def agree(self, flag: bool) -> bool:
        """Whether any process of the layout says so."""
        return self.layout.any(flag)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, by rank."""
        return self.layout.gather(value)

    def self_test(self) -> None:
        """Every group of the layout, with known numbers."""
        selftest.run(self.layout)

    def replicas_differ(self) -> list[str]:
        """Parameters that are not the same bits on all ranks that replicate them."""
        return replicas.differences(self.parameters, self.layout, self.shape.tied_embeddings)

    def vitals(self) -> Vitals:
        """Sampled weights, and the optimizer's settings in force."""
        return Vitals(samples(self.trained, self.layout), self.optimizer.vitals())

    def initialise(self) -> None:
        """Draw each tensor on the CPU from the seed and its name, so that all engines, layouts and devices start alike."""
        for name, parameter in self.base().items():
            whole = draw(self.shape, name, self.recipe.train.seed, self.recipe.model.mup)
            fill(name, parameter, whole, self.layout)
        self._draw_adapters()
        self._give_weights()

    def import_weights(self, folder: Path) -> None:
        """Safetensors of a Hugging Face folder."""
        read_weights(self.base(), self.shape, self.shapes, self.layout, folder, hugging_face_files(folder))
        self._draw_adapters()
        self._give_weights()

    def base(self) -> dict[str, Tensor]:
        """The model's own parameters, without adapters."""
        return {name: parameter for name, parameter in self.parameters.items() if not is_adapter(name)}

    def _draw_adapters(self) -> None:
        for name in self.parameters.keys() - self.base().keys():
            fill(name, self.parameters[name], initial(name, self.shapes[name], self.recipe.train.seed), self.layout)

    def export_weights(self, folder: Path, dtype: str) -> None:
        """Safetensors of a Hugging Face folder."""
        assert self.layout.hcg is None
        sizes = {name: parameter.size for name, parameter in self.base().items()}
        write_weights(sizes, partial(lora.merged, self.parameters, self.recipe.train.lora), folder, dtype)

    def export_adapter(self, folder: Path) -> None:
        """The adapter alone, as PEFT has it."""
        assert self.layout.hcg is None and self.recipe.train.lora is not None
        lora.write_adapter(self.parameters, self.recipe.train.lora, str(self.recipe.model.hugging_face), folder)

    def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
        """Batches as tensors."""
        return batches(source, steps, workers)

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        """Micro-batches are weighted by their supervised tokens, so that any split gives the gradient of the whole batch."""
        scale = self.optimizer.loss_scale
        mean, supervised = self._backward(batch)
        if supervised == 0:
            return StepResult(mean, 0, 0.0, NOTHING_SUPERVISED, scale)
        if self.observer is not None:
            self.observer.gradients(scale)
        with self.clock.during("optimizer"):
            norm, skipped = self.optimizer.step(learning_rate, math.isfinite(mean))
            self._give_weights()
        if self.observer is not None and skipped is None:
            self.observer.updates(learning_rate)
        return StepResult(mean, supervised, norm, skipped, scale, self.clock.take())

    def gradient_norm(self, batch: Batch) -> float:
        """By the same backward pass as a step's."""
        norm = self.optimizer.norm_alone() if self._backward(batch)[1] else 0.0
        self.clock.take()  # a step's seconds are its own
        return norm

    def _backward(self, batch: Batch) -> tuple[float, int]:
        """Gradients of the mean loss, times the loss scale. Returns (that loss, supervised tokens), of all processes."""
        tensors = {name: _tensor(array) for name, array in batch.items()}
        assert "samples" in tensors or not self.recipe.train.dropout
        supervised = int(self.layout.sum((tensors["targets"] != IGNORED).sum(), "data"))
        if supervised == 0:
            return math.nan, 0
        # Fleet averages gradients over the data ranks; the factor turns that into the sum that they are here.
        weight = self.optimizer.loss_scale * self.layout.data / supervised
        micro_batches = [{name: tensor[micro] for name, tensor in tensors.items()} for micro in range(tensors["inputs"].shape[0])]
        if self.pipeline is not None:
            with self.clock.during("backward"), self._autocast():  # and, inside it, forward
                total = self.pipeline.run(micro_batches, weight, train=True)
                self.pipeline.sum_tied_gradients()
                self._take_gradients()
        else:
            total = paddle.zeros([], dtype="float32")
            for micro in micro_batches:
                with self.clock.during("forward"):
                    loss = self._loss(micro, weight)
                with self.clock.during("backward"), self._recomputing():
                    loss.backward()
                self._take_gradients()
                total += loss.detach()
                self.optimizer.reducer.micro_batch_done()
        mean = float(self.layout.sum(total, "data")) / self.layout.data / self.optimizer.loss_scale
        if self.layout.hcg is not None:
            with self.clock.during("communication"):
                self.optimizer.reducer.reduce()
        return mean, supervised

    def metered_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, list[dict[str, int]]]:
        """Refused by the check of the recipe."""
        raise UserError("watch.memory: true needs train.engine torch, whose operators can be followed one by one; leave it out")

    def observed_step(self, batch: Batch, learning_rate: float, histograms: bool) -> tuple[StepResult, Observed]:
        """Activations only without ``train.compile``."""
        with observing(self, histograms) as self.observer:
            try:
                result = self.train_step(batch, learning_rate)
                return result, self.observer.result()
            finally:
                self.observer = None

    def traced_step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, Trace]:
        """Outputs, gradients and updates in host memory."""
        return traced_step(self, batch, learning_rate)

    @paddle.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """In the training precision; each data rank takes its rows, and every process gets the sums."""
        arrays = {name: _tensor(array) for name, array in batch.items() if name != "samples"}
        supervised = int((arrays["targets"] != IGNORED).sum())
        mine = {name: tensor.chunk(self.layout.data)[self.data_rank] for name, tensor in arrays.items()}
        micro_batches = [
            {name: tensor[first : first + self.recipe.micro_batch] for name, tensor in mine.items()}
            for first in range(0, mine["inputs"].shape[0], self.recipe.micro_batch)
        ]
        if self.pipeline is not None:
            with self._autocast():
                total = self.pipeline.run(micro_batches, 1.0, train=False)
        else:
            total = paddle.add_n([self._loss(micro, 1.0) for micro in micro_batches])
        return float(self.layout.sum(total, "data")), supervised

    def judge(self, batch: Batch) -> tuple[float, int, dict[str, float]]:
        """As ``evaluate``: objectives that are judged otherwise are refused."""
        return *self.evaluate(batch), {}

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
        kind = Cache if self.layout.auto else KeyValueCache
        logits = partial(self._next_logits, kind(self.shape, capacity, layers, self.layout.tensor))
        return generate(logits, self.layout.tell, tokens, capacity - len(tokens), sampling, end_id)

    @paddle.no_grad()
    def _next_logits(self, cache: KeyValueCache, tokens_bt: Tensor) -> NDArray[np.float32] | None:
        """Logits (v) after the last token, where this process sees them; in FP32 whatever the precision of training."""
        logits_btv = self.model(tokens_bt, cache=cache) if self.pipeline is None else self.pipeline.decode(tokens_bt, cache)
        return None if logits_btv is None else logits_btv[0, -1].astype("float32").numpy()

    def snapshot(self, copy: bool) -> Snapshot:
        """Weights and moments."""
        own = {name: self.shapes[name] for name in self.parameters if name in self.shapes}
        pieces = {name: written(name, own[name], self.parameters[name], self.layout, shared=True) for name in own}
        weights = {name: piece for name, piece in pieces.items() if piece is not None}
        states = self.optimizer.tensors(own)
        if copy:
            weights, states = self.buffers.copy(weights), self.buffers.copy(states)
        alone = self.layout.hcg is None
        return Snapshot({"scaler": self.optimizer.scale.state()}, lambda folder: write(weights, states, folder, self.rank, alone))

    def save(self, folder: Path) -> dict[str, Any]:
        """A snapshot that is written at once; what is returned goes to ``load``."""
        snapshot = self.snapshot(copy=False)
        snapshot.write(folder)
        return snapshot.state

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Whatever layout and engine wrote it."""
        self.load_weights(folder)
        self.optimizer.load_tensors(optimizer_states(folder), self.shapes, folder)
        self.optimizer.scale.load_state(state["scaler"])

    def load_weights(self, folder: Path) -> None:
        """Only the weights."""
        read_weights(self.parameters, self.shape, self.shapes, self.layout, folder, weights_files(folder))
        self._give_weights()

    def matmul_peak(self) -> float | None:
        """Best rate of products of square matrices in the training precision, over a third of a second."""
        return float(matmul_peak(self.device, self.dtype))

    def start_profile(self) -> None:
        """By paddle.profiler."""
        self.profile = StepProfile()

    def end_profile(self) -> Callable[[Path], None]:
        """What writes the trace."""
        assert self.profile is not None
        ended, self.profile = self.profile, None
        return ended.end()

    def copy_peak(self) -> float:
        """Of host memory."""
        return copy_peak()

    def held_bytes(self) -> dict[str, int]:
        """Weights and, once there was a step, two moments of each."""
        pieces = {name: held(parameter, self.layout) for name, parameter in self.parameters.items()}
        sizes = {name: piece.size * piece.element_size() for name, piece in pieces.items()}
        moments = 2 * sum(sizes[name] for name in self.optimizer.reducer.updated) if self.optimizer.steps else 0
        return {"parameters": sum(sizes.values()), "optimizer": moments}

    def device_memory(self) -> int | None:
        """Peak bytes that tensors took on the GPU."""
        return None if self.device == "cpu" else int(paddle.device.cuda.max_memory_allocated())

    def close(self) -> None:
        """Leave the groups of the layout."""
        self.layout.close()

    def _loss(self, tensors: dict[str, Tensor], scale: float) -> Tensor:
        with self._autocast():
            return self.model(
                tensors["inputs"],
                tensors.get("positions"),
                tensors.get("documents"),
                targets_bt=tensors["targets"],
                scale=scale,
                samples_b=tensors.get("samples"),
            )

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """What modules give out in here was seen before."""
        if self.observer is not None:
            self.observer.forward = False
        yield
        if self.observer is not None:
            self.observer.forward = True

    def _take_gradients(self) -> None:
        if self.apart is not None:
            self.apart.take_gradients()

    def _give_weights(self) -> None:
        if self.apart is not None:
            self.apart.give_weights()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype == "float32" else paddle.amp.auto_cast(dtype=self.dtype, level=self.level)


def _tensor(array: Any) -> Tensor:
    """Loaders without workers give arrays, those with workers tensors."""
    return array if isinstance(array, Tensor) else paddle.to_tensor(array)
