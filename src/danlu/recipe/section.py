"""What all sections of the recipe share.

A field marked ``RESUMABLE`` may differ when a run is resumed, since it does not change what is trained.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

RESUMABLE: dict[str, Any] = {"resumable": True}


class Section(BaseModel):
    """What all sections share: unknown keys are errors, values are not silently converted, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
