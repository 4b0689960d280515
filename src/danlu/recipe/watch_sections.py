"""Sections of the recipe: what a person sees of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from danlu.recipe.section import RESUMABLE, Section


class GenerateSection(Section):
    """The samples that are printed after training, and those that the page shows of it."""

    prompts: list[str] = Field(["", "The "], min_length=1, description="Texts to continue.", json_schema_extra=RESUMABLE)
    max_tokens: int = Field(64, gt=0, description="New tokens a sample.", json_schema_extra=RESUMABLE)
    temperature: float = Field(0.8, ge=0, description="0 always takes the most likely token.", json_schema_extra=RESUMABLE)
    top_k: int = Field(0, ge=0, description="Only the k most likely tokens; 0: all.", json_schema_extra=RESUMABLE)
    top_p: float = Field(
        0.95, gt=0, le=1, description="Only the most likely tokens of this total probability.", json_schema_extra=RESUMABLE
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the sampling.", json_schema_extra=RESUMABLE)
    every: int = Field(
        0, ge=0, description="Steps between samples that are made while the run trains; 0: none.", json_schema_extra=RESUMABLE
    )


class WatchSection(Section):
    """What a person sees."""

    page: bool = Field(
        False,
        description="Serve the live page on 127.0.0.1 for as long as the training runs, and print its address.",
        json_schema_extra=RESUMABLE,
    )
    print_every: int = Field(
        10, gt=0, description="Steps between printed lines where stdout is no terminal.", json_schema_extra=RESUMABLE
    )
    hang_seconds: float = Field(
        300.0,
        ge=5,
        description="Time without any progress on any rank after which a run of several processes is ended; ten times as "
        "much for what happens for the first time since its start.",
        json_schema_extra=RESUMABLE,
    )
    replica_check_every: int = Field(
        100,
        ge=0,
        description="Steps between checks that replicated parameters are the same bits on all ranks; 0: at the start and "
        "before checkpoints only.",
        json_schema_extra=RESUMABLE,
    )
    statistics_every: int = Field(
        20,
        ge=0,
        description="Steps between statistics of every tensor (weights, gradients, updates, activations), of the attention "
        "logits and of the batch; 0: none.",
        json_schema_extra=RESUMABLE,
    )
    histograms_every: int = Field(
        50,
        ge=0,
        description="Steps between histograms of the same, which come with the statistics; 0: none.",
        json_schema_extra=RESUMABLE,
    )
    system_every: int = Field(
        10,
        ge=0,
        description="Steps between readings of CPU, GPU, memory, disk and network, and of the time split, on every process; "
        "0: none.",
        json_schema_extra=RESUMABLE,
    )
    export: list[Literal["visualdl", "tensorboard"]] = Field(
        [],
        description="Formats in which the metrics are written as well while the run goes on, each into a folder of its name in "
        "the run folder.",
        json_schema_extra=RESUMABLE,
    )
    profile: str | None = Field(
        None,
        pattern=r"^[1-9]\d{0,8}:[1-9]\d{0,8}$",
        description="First and last step, such as 10:15, that are profiled operator by operator; null: none.",
        json_schema_extra=RESUMABLE,
    )
    memory: bool = Field(
        False,
        description="Meter one step operator by operator: peak bytes of parameters, gradients, optimizer, activations, the rest.",
        json_schema_extra=RESUMABLE,
    )

    @property
    def profiled(self) -> range:
        """The steps that are profiled."""
        first, last = map(int, (self.profile or "1:0").split(":"))
        return range(first, last + 1)
