"""What is asked of the planner: a model, a batch, how long to train, and what is not to be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from danlu.model.shape import ModelShape
from danlu.plan.job import Dimensions, Job, Lora, Second, adapters, masks, offload_kind, second
from danlu.recipe import Recipe
from danlu.recipe import offered as offers
from danlu.recipe.offered import OFFERED, Offered
from danlu.recipe.train_sections import BESIDE, MemorySection, ParallelSection

SCHEDULES: tuple[str, ...] = get_args(ParallelSection.model_fields["schedule"].annotation)
"""Orders of the pipeline that a recipe can ask for; the search chooses among what danlu runs."""
OFFLOADS = ("none", "optimizer-host", "optimizer-disk", "parameters-host", "parameters-disk")
"""Cheapest first."""


@dataclass(frozen=True)
class Request:
    """One training to be planned. The sizes are those of an optimizer step."""

    name: str
    dimensions: Dimensions
    sequence: int
    global_batch: int
    steps: float
    precisions: tuple[str, ...] = ("bf16",)
    """Those that may be chosen, first the one that is asked for."""
    compile: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Job` that are given, and not searched."""
    schedules: tuple[str, ...] = SCHEDULES
    offloads: tuple[str, ...] = OFFLOADS
    lora: Lora | None = None
    masks: int = 0
    offered: Offered = OFFERED["torch"]
    """What the engine has a part for."""
    notes: tuple[str, ...] = ()
    """What had to be assumed."""
    shape: ModelShape | None = None
    """The model as danlu builds it, where it is known."""
    second: Second | None = None
    """A model beside it that is not trained."""

    @property
    def tokens(self) -> float:
        """Of the whole training."""
        return self.steps * self.global_batch * self.sequence

    def with_(self, **changes: Any) -> Request:
        """A copy with some fields changed."""
        return replace(self, **changes)


def from_recipe(recipe: Recipe, shape: ModelShape, fixed: Mapping[str, Any] | None = None) -> Request:
    """The training that a recipe describes, with every layout and memory technique open unless fixed.

    A precision that the recipe leaves at its default is open too: mixed precision is the cheapest saving that there is.
    """
    asked, offered = recipe.train.precision, offers.of(recipe)
    kept = None if recipe.parallel.api == "fleet" else f"keep parallel.api: {recipe.parallel.api} beside what is found here"
    open_precision = "precision" not in recipe.train.model_fields_set
    return Request(
        name=recipe.name,
        dimensions=Dimensions.from_shape(shape),
        sequence=recipe.data.sequence_length,
        global_batch=recipe.train.global_batch,
        steps=recipe.train.steps,
        precisions=(asked, "bf16") if open_precision and asked == "fp32" else (asked,),
        compile=recipe.train.compile,
        fixed=dict(fixed or {}) | ({"pipeline": 1} if recipe.train.objective in BESIDE else {}),
        lora=adapters(recipe, shape),
        masks=masks(recipe, shape),
        offered=offered,
        notes=tuple(note for note in (offered.note, kept) if note),
        shape=shape,
        second=second(recipe, shape),
    )


def given(recipe: Recipe) -> dict[str, Any]:
    """What a search for an automatic recipe may not change: all of a section that is not auto, and what stands beside auto."""
    fixed: dict[str, Any] = {}
    for section in (recipe.parallel, recipe.memory):
        names = section.model_fields_set if section.auto else set(type(section).model_fields)
        fixed |= {name: getattr(section, name) for name in names - {"auto"}}
    if fixed.get("micro_batch", 0) is None:
        del fixed["micro_batch"]
    optimizer, parameters = fixed.pop("offload_optimizer", None), fixed.pop("offload_parameters", None)
    fixed.pop("offload_folder", None)
    if optimizer is not None or parameters is not None:
        fixed["offload"] = offload_kind(optimizer or "none", parameters or "none")
    return fixed


def own_layout(recipe: Recipe, shape: ModelShape) -> Job:
    """The layout that the recipe itself spells out."""
    return Job.from_recipe(recipe, shape)


def recipe_fields(job: Job) -> dict[str, dict[str, Any]]:
    """The sections of a recipe that ask for this layout; what is at its default is left out."""
    parallel = {
        "data": job.data,
        "tensor": job.tensor,
        "pipeline": job.pipeline,
        "zero_stage": job.zero_stage,
        "schedule": job.schedule if job.pipeline > 1 else "1f1b",
        "sequence_parallel": job.sequence_parallel,
    }
    memory: dict[str, Any] = {
        "micro_batch": job.micro_batch,
        "recompute": job.recompute,
        "recompute_every": job.recompute_every if job.recompute != "none" else 1,
    }
    what, _, place = job.offload.partition("-")
    if place:
        memory["offload_optimizer"] = place
    if what == "parameters":
        memory["offload_parameters"] = place
    return {
        "train": {"precision": job.precision},
        "parallel": _changed(parallel, ParallelSection),
        "memory": _changed(memory, MemorySection),
    }


def _changed(values: dict[str, Any], section: type[ParallelSection] | type[MemorySection]) -> dict[str, Any]:
    fields = section.model_fields
    return {name: value for name, value in values.items() if name not in fields or fields[name].default != value}
