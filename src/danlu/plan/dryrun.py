"""A training step of danlu's torch engine on tensors without storage, to check what the planner says of its memory.

The engine is the real one: model, layout, schedule, optimizer and meter. Its tensors are fake (shapes and types alone) and so is
the process group, so that a rank of any layout runs here. Operators are those of a CPU: its fused attention keeps what a GPU's
does (the output, and a logarithm for each row and head). The loss works on pieces as large as on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining._utils import InferenceMode, extract_tensor_metas
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from danlu import recipe as recipes
from danlu.engines.base import MEMORY_KINDS
from danlu.engines.torch import loss
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.meter import Meter, metered
from danlu.engines.torch.pieces import local
from danlu.engines.torch.trial import random_batch
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.plan.job import Job
from danlu.plan.request import recipe_fields
from danlu.recipe import Recipe

DEPTH, DEEPER = 4, 2
"""Layers of the shallower of the two runs that are extrapolated, and how many more the other has: enough for what is fetched
ahead and let go behind to have its full extent."""


@dataclass(frozen=True)
class Measured:
    """One rank, in bytes."""

    weights: int
    gradients: int
    """Of the parameters that it updates, when the update begins."""
    optimizer: int
    """Both moments; the step counts, four bytes a tensor, are left out."""
    activations: int
    """The most that forward passes had left for backward passes."""
    peak: int
    at_peak: dict[str, int]
    """What the peak consists of, by the meter's kinds."""


def measure(job: Job, shape: ModelShape, rank: int, whole: bool = False) -> Measured:
    """A step of a pipeline rank (data and tensor rank 0). Layers repeat, so that few are run and the rest is extrapolated.

    ``whole`` runs all of them.
    """
    if job.second is not None:
        raise UserError("a dry run knows no second model yet; plan without it")
    torch.set_num_threads(1)  # nothing is computed
    sizes = job.stages[rank]
    step = job.recompute_every if job.recompute != "none" else 1
    left_out = 0 if whole or not _alike(job) else (min(sizes) - DEPTH) // step * step
    if left_out <= DEEPER * step:
        return _measured(_curve(job, shape, rank, 0))
    low, high = _curve(job, shape, rank, left_out), _curve(job, shape, rank, left_out - DEEPER * step)
    return _measured(low + (high - low) * left_out // (DEEPER * step))


def _curve(job: Job, shape: ModelShape, rank: int, left_out: int) -> Any:
    """(parts, 4 + kinds) bytes: of each part of the step that is linear in the depth, what it has at its fullest moment.

    The first four columns are the states and the largest activations of the whole step.
    """
    if job.pipeline == 1:  # then the model is one stage; else its layers are left out stage by stage
        shape, left_out = shape.model_copy(update={"layers": shape.layers - left_out}), 0
    recipe, fake = _recipe(job, shape), FakeTensorMode(allow_non_fake_inputs=True)
    if job.devices > 1:
        world = rank * job.data * job.tensor
        dist.init_process_group("fake", store=FakeStore(), rank=world, world_size=job.devices)
    try:
        # On a GPU the softmax is of a whole chunk.
        with patch.object(loss, "BLOCK_BYTES", 1 << 62), _unseen_shapes():
            engine = _Engine(recipe, shape, fake, left_out)
            with fake:
                batch = random_batch(recipe, shape.vocab_size)
                _as_after_a_step(engine)
                with metered(engine) as meter, _no_garbage():
                    engine.mark_with(meter)
                    engine.train_step(batch, 1e-4)
                return _parts(meter, engine)
    finally:
        if job.devices > 1:
            dist.destroy_process_group()


def _parts(meter: Meter, engine: _Engine) -> Any:
    held = meter.held()
    activations = held[MEMORY_KINDS.index("activations")]
    states = [_bytes(engine.parameters.values()), engine.gradients, _bytes(engine.moments())]
    rows = []
    marks = [0, *engine.marks, held.shape[1]]
    backward = [next((turn for turn in meter.turns if a < turn < b), b) for a, b in pairwise(marks)]
    # In between memory rises or falls from layer to layer, so that the most is near one of the ends.
    edges = sorted([*marks, *backward])
    ends = [0, *(end for a, b in pairwise(edges) for end in ((a + b) // 2, b))]
    for begin, end in pairwise(ends):
        begin = min(begin, held.shape[1] - 1)
        part = slice(begin, max(end, begin + 1))
        most = begin + int(held[:, part].sum(axis=0).argmax())
        rows.append([*states, activations.max(), *held[:, most]])
    return np.array(rows, dtype=np.int64)


def _measured(parts: Any) -> Measured:
    weights, gradients, optimizer = (int(each) for each in parts[0, :3])
    kinds = parts[parts[:, 4:].sum(axis=1).argmax(), 4:]
    at_peak = {name: int(each) for name, each in zip(MEMORY_KINDS, kinds, strict=True)}
    return Measured(weights, gradients, optimizer, int(parts[0, 3]), int(kinds.sum()), at_peak)


class _Known(Layout):
    """A layout whose other processes do not exist: sums are 1, so that the engine can decide by them."""

    def sum(self, value: torch.Tensor, *names: str) -> torch.Tensor:
        super().sum(value, *names)
        return torch.tensor(1.0)


class _Engine(TorchEngine):
    """The engine as one rank of a layout, on fake tensors, with fewer layers on each of its stages."""

    def __init__(self, recipe: Recipe, shape: ModelShape, fake: FakeTensorMode, left_out: int) -> None:
        self.fake, self.left_out, self.gradients = fake, left_out, 0
        self.marks: list[int] = []
        """Events of the meter at which a pass through the layers begins or ends, or the update begins."""
        super().__init__(recipe, shape)
        if self.pipeline is not None:
            self._tell_shapes()

    def mark_with(self, meter: Meter) -> None:
        """Note when the parts of the step begin, and what there is of gradients when the last one does."""
        update = self.optimizer.step

        def mark(*_: Any) -> None:
            self.marks.append(meter.events)

        def step(*arguments: Any) -> Any:
            mark()
            self.gradients = _bytes(each.grad for each in self.parameters.values() if each.grad is not None)
            return update(*arguments)

        setattr(self.optimizer, "step", step)  # noqa: B010
        for stage in self.stages:
            stage.model.register_forward_pre_hook(mark)
            stage.model.register_forward_hook(mark)

    def moments(self) -> list[torch.Tensor]:
        """Without the step counts."""
        return [each for state in self.optimizer.adamw.state.values() for each in state.values() if each.ndim]

    def _join(self) -> Layout:
        return _Known.over(self.recipe, self._device) if self.recipe.parallel.processes > 1 else _Known()

    def _ranges(self) -> list[range]:
        return [range(each.start, each.stop - self.left_out) for each in super()._ranges()]

    def _allocate(self, offload: Path) -> None:
        with self.fake:
            super()._allocate(offload)

    def _tell_shapes(self) -> None:
        """What the stages would tell each other first."""
        assert self.pipeline is not None
        parallel, t = self.recipe.parallel, self.recipe.data.sequence_length
        part = t // parallel.tensor if parallel.sequence_parallel else t
        tokens = torch.empty(self.recipe.micro_batch, t, dtype=torch.int64, device="meta")
        hidden = torch.empty(self.recipe.micro_batch, part, self.shape.hidden_size, device="meta", requires_grad=True)
        total = torch.empty(1, device="meta", requires_grad=True)
        self.pipeline.schedule._warmup_p2p = lambda *_: None
        for stage in self.pipeline.wrapped:
            stage._user_meta.inputs = extract_tensor_metas((tokens if stage.is_first else hidden,))
            stage._user_meta.outputs = extract_tensor_metas((total if stage.is_last else hidden,))
            stage._inference_mode = InferenceMode.STATIC


def _as_after_a_step(engine: _Engine) -> None:
    """Make the moments, and the places of gathered parameters, so that one step shows all that there is."""
    for stage in engine.stages:
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
                module.reshard()
    for parameter in engine.trained.values():
        parameter.grad = torch.zeros_like(parameter)
    engine.optimizer.step(1e-4, True)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """When garbage is collected depends on what else was made: in two runs that are compared it would be at different moments."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _unseen_shapes() -> Iterator[None]:
    """DTensor finds out the shape of a result with whole fake tensors, which no one is to count."""
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(*arguments: Any) -> Any:
        with _disable_current_modes():
            return propagate(*arguments)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


def _bytes(tensors: Any) -> int:
    return sum(local(each).nbytes for each in tensors)


def _alike(job: Job) -> bool:
    """Whether all layers have the same adapters, so that few of them tell of the others."""
    return job.lora is None or len(set(job.lora.kinds)) == 1


def _recipe(job: Job, shape: ModelShape) -> Recipe:
    """What would train it; the corpus is never read."""
    sections, lora = recipe_fields(job), {}
    if job.lora is not None:
        targets = [*job.lora.kinds[0]]
        if not _alike(job):
            targets = [f"model.layers.{layer}.*.{kind}" for layer, kinds in enumerate(job.lora.kinds) for kind in kinds]
        how = {"base": "int8" if job.lora.quantised else "fp32", "dropout": 0.1 if job.lora.dropout else 0.0}
        lora = {"lora": {"rank": int(job.lora.rank), "targets": targets, "dora": job.lora.lengths, **how}}
    return recipes.parse(
        {
            "name": "dryrun",
            "stages": ["train"],
            "model": shape.model_dump(exclude_none=True) if job.lora is None else {"hugging_face": "-"},
            "data": {
                "sources": [{"path": "-"}],
                "tokenizer": {"path": "-"},
                "sequence_length": job.sequence,
                "document_mask": job.masks > 0,
            },
            **sections,
            "train": {"global_batch": job.global_batch, "device": "cpu", "compile": job.compile, **lora, **sections["train"]},
        }
    )
