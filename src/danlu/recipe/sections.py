"""The typed recipe: one class a section, every field with its unit and default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from danlu.model.mup import Mup
from danlu.model.shape import Architecture
from danlu.recipe.data_sections import DataSection
from danlu.recipe.doctor_section import DoctorSection
from danlu.recipe.section import RESUMABLE, Section
from danlu.recipe.train_sections import CheckpointSection, MemorySection, ParallelSection, TrainSection
from danlu.recipe.watch_sections import GenerateSection, WatchSection

AUTOMATIC = ("parallel", "memory")
"""Sections that the planner can fill in; the word auto stands for such a section."""

Stage = Literal["prepare", "train", "evaluate", "generate", "export"]


class ModelSection(Architecture):
    """What is trained: a preset, a checkpoint's shape, or every dimension spelled out; fields beside a preset override it."""

    preset: str | None = Field(None, description="A named shape; `danlu model list` prints them.")
    hugging_face: str | None = Field(
        None, description="Folder in the Hugging Face layout; its config.json gives the shape and its safetensors the weights."
    )
    vocab_size: int | None = Field(None, gt=0, description="Rows of the embedding; null: the tokenizer's size.")
    layers: int | None = Field(None, gt=0, description="Decoder blocks.")
    hidden_size: int | None = Field(None, gt=0, description="Width of the residual stream.")
    ffn_size: int | None = Field(None, gt=0, description="Width of one MLP matrix.")
    heads: int | None = Field(None, gt=0, description="Query heads.")
    mup: Mup | None = Field(
        None,
        description="Maximal update parametrisation, by which the best learning rate is the same at every width; null: off.",
    )


class Recipe(Section):
    """One file that describes a run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Folder of the run below the runs folder: ASCII letters, digits, `.`, `_`, `-`, and no `.lock` or "
        "`.partial` at the end.",
    )
    stages: list[Stage] = Field(
        ["prepare", "train", "evaluate", "generate"],
        min_length=1,
        description="What `danlu run` does, in order.",
        json_schema_extra=RESUMABLE,
    )
    model: ModelSection = Field(description="What is trained.")
    data: DataSection = Field(description="From raw text to batches.")
    train: TrainSection = Field(TrainSection(), description="How it is trained.")
    parallel: ParallelSection = Field(ParallelSection(), description="How the work is spread over devices.")
    memory: MemorySection = Field(MemorySection(), description="What is traded for memory.")
    generate: GenerateSection = Field(GenerateSection(), description="Samples after training.")
    watch: WatchSection = Field(WatchSection(), description="What a person sees.")
    doctor: DoctorSection = Field(DoctorSection(), description="What the doctor does beside the run.")
    checkpoint: CheckpointSection = Field(CheckpointSection(), description="When the run is saved.")

    @field_validator("name")
    @classmethod
    def _no_name_of_a_lock(cls, name: str) -> str:
        for ending in (".lock", ".partial"):
            if name.lower().endswith(ending):
                raise ValueError(
                    f"{name} ends in {ending}, as the files do by which runs are guarded; give another, such as {name}-1"
                )
        return name

    @property
    def automatic(self) -> bool:
        """Whether the planner still has to fill in a section."""
        return self.parallel.auto or self.memory.auto

    @property
    def alone(self) -> Recipe:
        """The same recipe for one process, which evaluates, generates and exports."""
        return self.model_copy(update={"parallel": ParallelSection()})

    @property
    def micro_batch(self) -> int:
        """Samples in one forward pass on one rank."""
        return self.memory.micro_batch or self.train.global_batch // self.parallel.data

    @property
    def accumulation(self) -> int:
        """Micro-batches a step on one rank."""
        return self.train.global_batch // (self.micro_batch * self.parallel.data)

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up, resolved; 6 % of the steps by default, inside the usual 5-10 %."""
        schedule = self.train.schedule
        if schedule.warmup_steps is not None:
            return schedule.warmup_steps
        fraction = 0.06 if schedule.warmup_fraction is None else schedule.warmup_fraction
        return round(fraction * self.train.steps)
