"""Section of the recipe: what the doctor does beside a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from danlu.recipe.section import RESUMABLE, Section


class DoctorSection(Section):
    """The doctor inside training: what it looks at, and what a critical finding leads to."""

    every: int = Field(
        10, ge=0, description="Steps between looks at the weights and the curves; 0: no doctor.", json_schema_extra=RESUMABLE
    )
    time_share: float = Field(
        0.004,
        gt=0,
        le=1,
        description="Share of the time that diagnoses may take; after a costly one the next waits. 1: each look is a diagnosis.",
        json_schema_extra=RESUMABLE,
    )
    retain: str | None = Field(
        None,
        description="A text, JSON or Parquet file that tuning must not make the model forget: its loss is measured ahead of the "
        "first step and at each validation.",
        json_schema_extra=RESUMABLE,
    )
    on_critical: Literal["warn", "stop", "rollback"] = Field(
        "warn",
        description="warn: say so and go on. stop: end the run. rollback: go back to the last checkpoint before it and leave out "
        "the batches since; what going back cannot mend stops the run.",
        json_schema_extra=RESUMABLE,
    )
    rollbacks: int = Field(3, gt=0, description="Times a run may go back; after that it stops.", json_schema_extra=RESUMABLE)
    skip_batches: int = Field(
        100,
        ge=0,
        description="Batches left out at a rollback beyond those up to the finding; published runs left out 200 to 500.",
        json_schema_extra=RESUMABLE,
    )
    rollback_rate: float = Field(
        1.0, gt=0, le=1, description="What each rollback multiplies the learning rate by.", json_schema_extra=RESUMABLE
    )
