"""What a person names on the command line, as a request: a recipe, a run, a preset or a config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from danlu.errors import UserError
from danlu.model.presets import PRESETS, preset
from danlu.plan import config
from danlu.plan.job import Dimensions, Job
from danlu.plan.request import Request, from_recipe, given, own_layout
from danlu.plan.words import count
from danlu.recipe.load import load
from danlu.recipe.resolve import resolve_shape

STEP_TOKENS = 1 << 22
"""Tokens of a step when none are given."""
USUAL_SEQUENCE = 4096
TOKENS_PER_PARAMETER = 20
"""What is best for a given amount of compute (Hoffmann et al. 2022)."""


@dataclass(frozen=True)
class Given:
    """What may be said beside a model that is no recipe."""

    sequence: int | None = None
    global_batch: int | None = None
    tokens: float | None = None
    precision: str | None = None


def target(name: str, overrides: Sequence[str], beside: Given) -> tuple[Request, Job | None]:
    """The request, and the layout that a recipe itself has. UserError: there is no such thing, or it takes no such option."""
    path = Path(name).expanduser()
    if name in PRESETS:
        shape = preset(name)
        request = _model(name, Dimensions.from_shape(shape), shape.max_sequence_length, (), overrides, beside)
        return request.with_(shape=shape), None
    if path.suffix == ".json" or (path.is_dir() and not (path / "recipe.yaml").is_file() and (path / "config.json").is_file()):
        read = config.read(path)
        title = (path.parent if path.suffix == ".json" else path).resolve().name
        return _model(title, read.dimensions, read.longest, read.notes, overrides, beside), None
    if path.is_dir():
        path = path / "recipe.yaml"
    if not path.is_file():
        raise UserError(f"{name}: there is no such recipe, run, config.json or preset (danlu model list)")
    if beside != Given():
        field = next(field for field, value in vars(beside).items() if value is not None)
        written = {"sequence": "data.sequence_length", "global_batch": "train.global_batch", "precision": "train.precision"}
        place = written.get(field, "train.steps")
        raise UserError(f"--{field.replace('_', '-')}: a recipe says that itself; override it: {place}=...")
    recipe = load(path, overrides)
    shape = resolve_shape(recipe, None)
    if recipe.automatic:
        return from_recipe(recipe, shape, given(recipe)), None
    return from_recipe(recipe, shape), own_layout(recipe, shape)


def _model(
    name: str, dimensions: Dimensions, longest: int | None, notes: tuple[str, ...], overrides: Sequence[str], given: Given
) -> Request:
    if overrides:
        raise UserError(f"{overrides[0]}: only a recipe has fields to override; use --sequence, --global-batch and --tokens")
    assumed = list(notes)
    sequence = given.sequence
    if sequence is None:
        sequence = min(USUAL_SEQUENCE, longest or USUAL_SEQUENCE)
        assumed.append(f"--sequence is not given: {sequence:,} tokens a sample")
    batch = given.global_batch
    if batch is None:
        batch = 1 << max(0, (STEP_TOKENS // sequence).bit_length() - 1)  # what most numbers of devices divide
        assumed.append(f"--global-batch is not given: {batch:,} samples a step")
    tokens = given.tokens
    if tokens is None:
        tokens = float(TOKENS_PER_PARAMETER * dimensions.parameters)
        assumed.append(f"--tokens is not given: {count(tokens)}, {TOKENS_PER_PARAMETER} a parameter")
    if longest is not None and sequence > longest:
        assumed.append(f"--sequence {sequence:,} is longer than the model is made for ({longest:,})")
    return Request(
        name=name,
        dimensions=dimensions,
        sequence=sequence,
        global_batch=batch,
        steps=max(1.0, tokens / (sequence * batch)),
        precisions=(given.precision or "bf16",),
        notes=tuple(assumed),
    )
