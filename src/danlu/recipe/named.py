"""A model from whatever a person names it by."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from danlu.errors import UserError
from danlu.model.counts import Precision
from danlu.model.presets import PRESETS, preset
from danlu.model.shape import ModelShape
from danlu.recipe.load import load
from danlu.recipe.resolve import checkpoint_shape, resolve_shape
from danlu.recipe.sections import ModelSection


class Named(NamedTuple):
    """A shape, and how it is trained where the name says so."""

    shape: ModelShape
    sequence_length: int = 2048
    precision: Precision = "fp32"


def named(name: str) -> Named:
    """The model of a preset, of a recipe file, or of a folder that holds a recipe.yaml (a run) or a config.json.

    UserError: it is none of these.
    """
    if name in PRESETS:
        return Named(preset(name))
    path = Path(name).expanduser()
    if path.is_dir() and (path / "recipe.yaml").is_file():
        path = path / "recipe.yaml"
    if path.is_dir():
        return Named(checkpoint_shape(ModelSection(hugging_face=str(path))))
    if path.is_file():
        recipe = load(path)
        return Named(resolve_shape(recipe, None), recipe.data.sequence_length, recipe.train.precision)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise UserError(f"{name}: there is no such recipe or folder")
    return Named(preset(name))  # which names the nearest presets
