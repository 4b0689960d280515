"""A model's shape from whatever a person names it by."""

from __future__ import annotations

from pathlib import Path

from danlu.errors import UserError
from danlu.model.presets import PRESETS, preset
from danlu.model.shape import ModelShape
from danlu.recipe.load import load
from danlu.recipe.resolve import checkpoint_shape, resolve_shape
from danlu.recipe.sections import ModelSection


def named_shape(name: str) -> ModelShape:
    """The shape of a preset, of a recipe file, or of a folder that holds a recipe.yaml (a run) or a config.json.

    UserError: it is none of these.
    """
    if name in PRESETS:
        return preset(name)
    path = Path(name).expanduser()
    if path.is_dir() and (path / "recipe.yaml").is_file():
        path = path / "recipe.yaml"
    if path.is_dir():
        return checkpoint_shape(ModelSection(hugging_face=str(path)))
    if path.is_file():
        return resolve_shape(load(path), None)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise UserError(f"{name}: there is no such recipe or folder")
    return preset(name)  # which names the nearest presets
