"""What ``danlu doctor audit`` looks at: the recipe, its data where it is prepared, and what the planner says of this machine."""

from __future__ import annotations

from pathlib import Path

from danlu import auto
from danlu.data import reuse
from danlu.data.prepared import Prepared, is_prepared
from danlu.data.sources import resolve
from danlu.doctor.audit.material import Material
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, resolve_shape
from danlu.run_folder import RunFolder


def material(recipe: Recipe, path: Path) -> Material:
    """What there is to look at. Nothing is written. UserError: the recipe, its sources or the prepared data are at fault."""
    data = RunFolder(path).data
    prepared = reuse.reuse(recipe, data, lambda line: None) if is_prepared(data) else None
    if prepared is None:
        resolve(recipe.data.sources)
    shape = _shape(recipe, prepared)
    plan = None if shape is None or recipe.automatic else auto.prediction(recipe, shape)
    return Material(recipe, path, shape, prepared, plan)


def _shape(recipe: Recipe, prepared: Prepared | None) -> ModelShape | None:
    """The shape, as far as it can be known before the data is prepared."""
    if prepared is not None:
        return resolve_shape(recipe, prepared.vocab_size)
    vocabulary = auto.vocabulary(recipe)
    try:
        return resolve_shape(recipe, vocabulary)
    except UserError:
        if recipe.model.hugging_face is not None:
            raise
        return None
