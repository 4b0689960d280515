"""Whether what a recipe names outside its run folder is there, before that folder is made."""

from __future__ import annotations

from pathlib import Path

from danlu.data.prepared import is_prepared
from danlu.data.sources import resolve
from danlu.data.tokenizer import tokenizer_file
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.train.room import check_folder


def check(recipe: Recipe, path: Path, trains: bool) -> None:
    """UserError: a source has no file, or a file or folder cannot be used. ``path`` is the run folder; nothing is kept there."""
    if not is_prepared(RunFolder(path).data):
        resolve(recipe.data.sources)
        if recipe.data.tokenizer.path is not None:
            tokenizer_file(recipe.data.tokenizer.path)
    if trains:
        check_folder(recipe)
