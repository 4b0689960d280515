"""Finished runs of small sizes as what a scaling law is fitted on, and whether they and the recipe to come are of one family."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from danlu.errors import UserError
from danlu.model.counts import parameter_parts
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, resume_conflicts
from danlu.run_folder import RunFolder
from danlu.watch import store

RECENT_STEPS = 20
"""Last steps whose mean loss stands for a validation loss where nothing is held out."""
SIZES = {"layers", "hidden_size", "ffn_size", "heads", "kv_heads", "head_size", "max_sequence_length", "vocab_size"}
"""Fields of the model that runs of one family differ in; the vocabulary is compared by its tokenizer."""
HANDLING = {"data.workers", "data.shard_tokens", "data.bad_line_limit"}
"""Fields of the data that change nothing of it."""
VARIED = {"train.steps", "train.global_batch", "train.optimizer.learning_rate", "train.schedule.warmup_steps", "train.seed"}
"""Fields of the training that runs to be compared may differ in, or have to."""


@dataclass(frozen=True)
class SmallRun:
    """A run that is over."""

    folder: Path
    recipe: Recipe
    shape: ModelShape
    loss: float
    """In nats a token at the end; infinity where the run diverged."""
    held_out: bool
    """Whether that is on text held out; else in the mean of the last steps."""
    index: dict[str, Any]
    """Of its data; empty where that was deleted."""

    @property
    def parameters(self) -> int:
        """Without embeddings, as scaling laws count."""
        return parameter_parts(self.shape).non_embedding

    @property
    def tokens(self) -> int:
        """That went through its training steps."""
        return trained_tokens(self.recipe)

    @property
    def rate(self) -> float:
        """Its peak learning rate."""
        return self.recipe.train.optimizer.learning_rate


def trained_tokens(recipe: Recipe) -> int:
    """Of the whole training."""
    return recipe.train.steps * recipe.train.global_batch * recipe.data.sequence_length


def find(patterns: Sequence[str]) -> list[Path]:
    """The folders that paths and globs name, each once. UserError: one names none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        folders = [Path(name) for name in sorted(glob.glob(str(Path(pattern).expanduser()))) if Path(name).is_dir()]
        if not folders:
            raise UserError(f"--from-runs {pattern}: names no folder; give run folders, or a glob of them in quotes")
        found |= dict.fromkeys(folders)
    return list(found)


def read(folders: Sequence[Path]) -> tuple[list[SmallRun], list[str]]:
    """The runs that are over, and what to say of those that are not. UserError: a folder is no run, or is damaged."""
    runs, notes = [], []
    for folder in folders:
        made = _read(RunFolder.open(folder))
        if isinstance(made, str):
            notes.append(f"{folder} is left out: {made}")
        else:
            runs.append(made)
    if not all(run.held_out for run in runs) and any(run.held_out for run in runs):
        bare = next(run.folder for run in runs if not run.held_out)
        raise UserError(f"{bare}: has no validation loss, but others have; leave it out, or hold text out in all of them")
    if runs and not runs[0].held_out:
        notes.append(f"nothing is held out: losses are means of the last {RECENT_STEPS} training steps")
    return runs, notes


def _read(run: RunFolder) -> SmallRun | str:
    """A run, or why it cannot be used."""
    recipe = run.load_recipe()
    if not run.metrics.is_file() or (kept := run.read("shape.json")) is None:
        return "it has not been trained"
    try:
        shape = ModelShape.model_validate(kept)
    except ValidationError as error:
        raise UserError(f"{run.path / 'shape.json'}: damaged ({error.errors()[0]['msg']}); leave the run out") from None
    steps, losses = store.series(run.metrics, "train/loss")
    index = run.read("data/index.json") or {}
    done = int(steps[-1]) if steps.size else 0
    when, validated = store.series(run.metrics, "validation/loss")
    held_out = bool(when.size and when[-1] == recipe.train.steps)
    if done == recipe.train.steps:
        loss = float(validated[-1] if held_out else losses[-RECENT_STEPS:].mean())
        return SmallRun(run.path, recipe, shape, loss if math.isfinite(loss) else math.inf, held_out, index)
    if {"stop", "skipped_step"} <= {event.kind for event in store.events(run.metrics) if event.step == done}:
        return SmallRun(run.path, recipe, shape, math.inf, recipe.data.validation_fraction > 0, index)
    return f"{done} of {recipe.train.steps} steps are done, and only at the end of its schedule a loss counts"


def check_family(runs: Sequence[SmallRun], target: Recipe) -> list[str]:
    """What else the runs differ in, to be said. UserError: one of them, or the recipe, has another model, data or tokenizer."""
    first, told = runs[0], {}
    for run in runs[1:]:
        for part in ("tokenizer", "splits"):
            if run.index and first.index and _identity(run, part) != _identity(first, part):
                what = "tokenizer" if part == "tokenizer" else "held-out text"
                raise UserError(
                    f"{run.folder}: its {what} is not that of {first.folder}, so that their losses cannot be compared"
                )
    others = [*((str(run.folder), run.recipe) for run in runs[1:]), ("the recipe", target)]
    for name, recipe in others:
        for field, here, there in _differences(first.recipe, recipe):
            if field.startswith(("model.", "data.")):
                way_out = "a law holds for one family and its data"
                raise UserError(f"{name}: {field} is {there!r}, but {here!r} in {first.folder}; {way_out}")
            told[field] = f"{field} is {here!r} in {first.folder} and {there!r} in {name}: what it changes counts as noise"
    return list(told.values())


def _identity(run: SmallRun, part: str) -> Any:
    return run.index["tokenizer"]["sha256"] if part == "tokenizer" else run.index["splits"]["validation"]


def _differences(one: Recipe, other: Recipe) -> Iterator[tuple[str, object, object]]:
    """Fields that two runs to be compared should share, and do not."""
    for field, here, there in resume_conflicts(one, other):
        section, _, rest = field.partition(".")
        free = section in ("name", "stages") or field in HANDLING | VARIED or (section == "model" and rest in SIZES)
        if not free:
            yield field, here, there
