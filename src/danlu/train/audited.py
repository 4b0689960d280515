"""The audits that are cheap enough to come ahead of every training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from danlu.data.prepared import Prepared
from danlu.doctor.audit.audit import audited_at_start
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity
from danlu.engines.base import Engine
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

PLAN = "plan.json"


def before_first_step(recipe: Recipe, shape: ModelShape, engine: Engine, prepared: Prepared, folder: Path) -> list[Finding]:
    """What they find of warning or above; nothing with doctor.every 0. All processes call, the first one gets the answer."""
    if not recipe.doctor.every:
        return []
    optimizer = engine.vitals().optimizer
    if engine.rank > 0:
        return []
    material = Material(recipe, folder, shape, prepared, _plan(folder), optimizer)
    return [finding for finding in audited_at_start(material).findings if finding.severity >= Severity.WARNING]


def _plan(folder: Path) -> dict[str, Any] | None:
    """What the planner said of this run, if it knew the machine."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None
