"""Evidence from a run folder, or from a log of another program."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.doctor.evidence import Evidence
from danlu.doctor.series import Series, series
from danlu.errors import UserError
from danlu.recipe import Recipe
from danlu.recipe.fields import dotted, every_field
from danlu.run_folder import RunFolder
from danlu.watch import logs, store
from danlu.watch.names import SIGNALS

DEVICE, DEVICE_OF = "train.device", "run.device"
"""The recipe may say auto; the segment says what it became."""
NAMED = 5
FACTS = {
    "train.optimizer.learning_rate": ("learning_rate", "lr", "base_lr"),
    "train.optimizer.gradient_clipping": ("gradient_clipping", "grad_clip", "grad_clip_norm"),
    "train.optimizer.weight_decay": ("weight_decay", "wd"),
    "train.schedule.warmup_steps": ("warmup_steps",),
    "train.schedule.warmup_fraction": ("warmup_fraction", "warmup_steps_fraction"),
    "train.steps": ("steps", "planned_steps", "max_steps", "iterations"),
    "train.precision": ("precision",),
    "train.global_batch": ("global_batch", "global_batch_size"),
}


def load(path: Path, facts: Mapping[str, Any] | None = None) -> Evidence:
    """Evidence from a run folder or another program's log. UserError: it is neither, or it cannot be read.

    `facts` are settings the file does not hold, by recipe field or by a usual name of theirs.
    """
    run = RunFolder(path)
    if run.recipe_file.is_file() or (path.is_dir() and not any(path.iterdir())):
        if facts:
            raise UserError(f"{path}: a run folder holds its own settings; leave {', '.join(facts)} out")
        return from_run(RunFolder.open(path))
    if path.suffix == ".sqlite" or run.metrics.is_file():
        return from_store(run.metrics if path.is_dir() else path, renamed_facts(facts or {}))
    log = logs.read(path)
    signals = {name: Series(*one) for name, one in logs.renamed(log.signals).items()}
    return Evidence(signals, renamed_facts({**log.settings, **(facts or {})}), name=path.name)


def check_known(path: Path, evidence: Evidence) -> None:
    """UserError: no rule can say anything of a log, whose signals have names that are not known."""
    if evidence.signals and not evidence.signals.keys() & (SIGNALS.keys() | logs.ALIASES.keys()):
        there = ", ".join(list(evidence.signals)[:NAMED])
        raise UserError(f"{path}: holds nothing that is known here ({there}); call the training loss train_loss")


def from_run(run: RunFolder) -> Evidence:
    """Evidence of danlu's own run; its recipe tells the settings and that all steps do the same work."""
    recipe = run.load_recipe()
    return from_store(run.metrics, facts_of(recipe, {}), name=recipe.name)


def facts_of(recipe: Recipe, information: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by recipe field, and what a segment tells of the run beside them as `run.NAME`."""
    facts = flat(recipe.model_dump(mode="json"))
    facts["train.schedule.warmup_steps"] = recipe.warmup_steps
    return facts | _told(information)


def _told(information: Mapping[str, Any]) -> dict[str, Any]:
    facts = {f"run.{name}": value for name, value in information.items() if value is not None}
    if DEVICE_OF in facts:
        facts[DEVICE] = facts.pop(DEVICE_OF)
    return facts


def from_store(path: Path, facts: Mapping[str, Any], name: str = "") -> Evidence:
    """Evidence from a metrics.sqlite."""
    signals = {name: series(*store.series(path, name)) for name in store.names(path)}
    segments = store.segments(path)
    resumes = [segment.first_step for segment in segments][1:]
    facts = {**facts, **(_told(segments[-1].info) if segments else {})}
    found = {signal: one for signal, one in signals.items() if len(one)}
    return Evidence(found, facts, resumes, own=True, name=name or path.name)


def check_given(facts: Mapping[str, Any]) -> None:
    """UserError: no rule can know a setting of that name, or its value is no number where it has to be one."""
    usual = {alias: name for name, aliases in FACTS.items() for alias in (name, *aliases)}
    fields = {dotted(entry.path) for entry in every_field()}
    for given, value in facts.items():
        if given not in usual and given not in fields and not given.startswith("run."):
            near = difflib.get_close_matches(given, [*usual, *fields], n=1)
            meant = f"did you mean {near[0]}?" if near else f"give a recipe's field, or one of: {', '.join(sorted(usual))}"
            raise UserError(f"setting {given}: there is none of that name; {meant}")
        number = isinstance(value, int | float) and math.isfinite(value)
        if usual.get(given, "train.precision") != "train.precision" and not number:
            raise UserError(f"setting {given}={value}: is no number; write it like {given}=3e-4")


def renamed_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their recipe fields; those that no rule knows keep their names."""
    result = dict(facts)
    for name, aliases in FACTS.items():
        value = next((facts[alias] for alias in (name, *aliases) if alias in facts), None)
        if value is not None:
            result[name] = value
    return result


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings under dotted names; a setting of null is not known."""
    result: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{above}{name}."))
        elif value is not None:
            result[above + name] = value
    return result


def read_facts(text: str) -> dict[str, Any]:
    """Settings from a JSON object; what is no object holds none."""
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
