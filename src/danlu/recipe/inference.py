"""The recipe by which a trained run is evaluated and continued: in one process, or in a layout that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from danlu.errors import UserError
from danlu.recipe.explain import Origins, fail, from_validation
from danlu.recipe.load import parse
from danlu.recipe.overrides import apply, spelled_out
from danlu.recipe.sections import AUTOMATIC, Recipe
from danlu.recipe.train_sections import ParallelSection

FIELDS = ("data", "tensor", "pipeline", "zero_stage", "api")
"""Of parallel; the others order or split a training step."""


def for_inference(recipe: Recipe, overrides: Sequence[str], own_layout: bool, rows: int) -> Recipe:
    """One process, or a layout with batches of about ``rows`` samples, one micro-batch for each pipeline rank.

    The layout is the run's own or no parallelism at all, with the overrides (``parallel.pipeline=2``) over it.
    UserError: an override of something else, or a layout that the model does not fit.
    """
    plain = recipe.model_dump(mode="json")
    plain["parallel"] = {name: plain["parallel"][name] for name in FIELDS} if own_layout else {}
    origins = Origins("recipe")
    tree = spelled_out(apply(plain, overrides, origins))
    if asked := [name for name in AUTOMATIC if tree.get(name) == {"auto": True}]:
        raise UserError(f"{asked[0]}: auto is for training; give parallel.data and the like here, or --layout for the run's own")
    try:
        parallel = Recipe.model_validate(tree).parallel
    except ValidationError as error:
        raise fail(from_validation(error), origins) from None
    others = parallel.model_copy(
        update={name: field.default for name, field in ParallelSection.model_fields.items() if name in FIELDS}
    )
    if others != ParallelSection() or tree | {"parallel": None} != plain | {"parallel": None}:
        raise UserError(f"only {', '.join(f'parallel.{name}' for name in FIELDS)} can be given here; the rest is the run's own")
    if parallel == ParallelSection():
        return recipe.alone
    ranks = parallel.data * parallel.pipeline
    micro_batch = max(1, rows // ranks)
    train = plain["train"] | {"global_batch": micro_batch * ranks, "compile": False}
    return parse(tree | {"train": train, "memory": {"micro_batch": micro_batch}})
