"""A recipe from a file or a tree: read, overridden, validated, checked for contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

from pydantic import ValidationError

from danlu.recipe.checks import contradictions
from danlu.recipe.explain import Origins, Problem, fail, from_validation, shown
from danlu.recipe.overrides import apply, spelled_out
from danlu.recipe.read import read_file
from danlu.recipe.sections import Recipe


def load(path: FilePath | str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML 1.2 file, with dotted overrides (``train.steps=10``) put over it.

    Raises UserError with one line: file and line (or override), the dotted field, what it must be, what it is, and the way out.
    Reads no other file: what the recipe names is looked at by the stage that needs it.
    """
    tree, lines = read_file(FilePath(path))
    return _validated(tree, overrides, Origins(str(path), lines))


def parse(tree: object, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a tree of dictionaries, lists and scalars, as `load` reads it from a file. The tree is left as it is."""
    return _validated(tree, overrides, Origins("recipe"))


def _validated(tree: object, overrides: Sequence[str], origins: Origins) -> Recipe:
    if not isinstance(tree, dict) or not tree:
        found = "empty" if tree is None else shown(tree)
        raise fail([Problem((), f"{found}; a recipe is `key: value` lines and begins with name:, model: and data:")], origins)
    tree = spelled_out(apply(tree, overrides, origins))
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        raise fail(from_validation(error), origins) from None
    if problems := contradictions(recipe):
        raise fail(problems, origins)
    return recipe
