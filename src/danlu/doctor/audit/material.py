"""What audits see of a run to come: its recipe, its shape, a bounded sample of its data, its tokenizer and its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from danlu.data.prepared import Prepared
from danlu.data.tokenizer import Tokenizer
from danlu.data.tokenizer import load as load_tokenizer
from danlu.doctor.audit.copies import copies
from danlu.doctor.audit.sample import Sample, of_sources, of_stream
from danlu.doctor.evidence import NotEnoughData
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

TOKENS = 1 << 22
"""Training tokens that are looked at when a person asks."""
AT_START = 1 << 18
"""And ahead of a training: a quarter of a second."""
BYTES_A_TOKEN = 4
"""By which a budget of tokens is one of text that has no tokens yet."""


@dataclass(frozen=True)
class Material:
    """All that there is; what is None is not known, and audits that need it cannot judge."""

    recipe: Recipe
    folder: Path
    """The run folder, there or to come."""
    shape: ModelShape | None = None
    prepared: Prepared | None = None
    plan: Mapping[str, Any] | None = None
    """What the planner says of the layout on this machine, as plan.json holds it."""
    optimizer: Mapping[str, float] | None = None
    """The optimizer's settings in force, as an engine tells them."""
    tokens: int = field(default=TOKENS)
    """Of each split, that are looked at."""

    def need_shape(self) -> ModelShape:
        """The shape. NotEnoughData: it is not known."""
        if self.shape is None:
            raise NotEnoughData("the model's shape is not known before the data is prepared")
        return self.shape

    def need_prepared(self) -> Prepared:
        """The prepared data. NotEnoughData: there is none."""
        if self.prepared is None:
            raise NotEnoughData("the data is not prepared yet; `danlu prepare` does it")
        return self.prepared

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer. NotEnoughData: it is to be trained yet."""
        settings = self.recipe.data.tokenizer
        if self.prepared is not None:
            return load_tokenizer(self.prepared.tokenizer_path)
        if settings.path is None:
            raise NotEnoughData("the tokenizer is trained when the data is prepared; `danlu prepare` does it")
        return load_tokenizer(settings.path, settings.begin, settings.end)

    @cached_property
    def _raw(self) -> tuple[Sample, Sample]:
        if self.recipe.data.curate is not None:
            raise NotEnoughData("curation chooses the documents when the data is prepared; `danlu prepare` does it")
        return of_sources(self.recipe.data, self.tokens * BYTES_A_TOKEN)

    @cached_property
    def train(self) -> Sample:
        """Training documents, spread over the whole corpus."""
        prepared = self.prepared
        return self._raw[0] if prepared is None else of_stream(prepared.train, self.tokenizer, self.tokens)

    @cached_property
    def validation(self) -> Sample:
        """Documents that are held out. NotEnoughData: there are none."""
        if not self.recipe.data.validation_fraction:
            raise NotEnoughData("data.validation_fraction is 0, so that nothing is held out")
        prepared = self.prepared
        return self._raw[1] if prepared is None else of_stream(prepared.validation, self.tokenizer, self.tokens)

    @cached_property
    def copies(self) -> list[int]:
        """For each training and then each validation document the number of the first that it copies: itself, where it is new."""
        held_out = self.validation.texts if self.recipe.data.validation_fraction else []
        return copies([*self.train.texts, *held_out])
