"""The recipe that the findings ask for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from danlu import recipe as recipes
from danlu.doctor.finding import Finding, Severity
from danlu.recipe import Recipe


def changes(findings: Iterable[Finding]) -> dict[str, Any]:
    """Fields and their new values of all findings of warning or above; where two disagree, the graver one's stands."""
    result: dict[str, Any] = {}
    for finding in findings:
        if finding.severity >= Severity.WARNING:
            result = {**finding.patch, **result}
    return result


def patched(recipe: Path, changed: dict[str, Any], name: str) -> Recipe:
    """The recipe in the file with the changes, under another name. UserError: they do not fit."""
    overrides = [f"{field}={json.dumps(value)}" for field, value in changed.items()]
    return recipes.load(recipe, [*overrides, f"name={json.dumps(name)}"])
