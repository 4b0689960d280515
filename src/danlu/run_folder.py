"""The run folder: one place that holds all that came of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from danlu import recipe as recipes
from danlu.errors import UserError
from danlu.files import write_json, write_text
from danlu.recipe import Recipe

RECIPE = "recipe.yaml"
NAMED_DIFFERENCES = 3


class RunFolder:
    """Paths below one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / RECIPE
        self.data = path / "data"
        self.metrics = path / "metrics.sqlite"
        self.checkpoints = path / "checkpoints"
        self.export = path / "export"

    @classmethod
    def create(cls, recipe: Recipe, path: Path) -> RunFolder:
        """The folder of this recipe's run, made if it is not there.

        UserError: it holds the run of another recipe, or something that is no run.
        """
        run = cls(path)
        if run.recipe_file.is_file():
            conflicts = recipes.resume_conflicts(recipes.load(run.recipe_file), recipe)
            if conflicts:
                named = "; ".join(f"{path} was {old!r}, is now {new!r}" for path, old, new in conflicts[:NAMED_DIFFERENCES])
                more = f" and {len(conflicts) - NAMED_DIFFERENCES} more" if len(conflicts) > NAMED_DIFFERENCES else ""
                raise UserError(
                    f"{run.path} holds the run of another recipe ({named}{more}); "
                    f"give this one another name (name={recipe.name}-2) or delete the folder"
                )
        elif run.path.is_dir() and any(run.path.iterdir()):
            raise UserError(f"{run.path} is not empty and holds no {RECIPE}; give the run another name or clear the folder")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            write_text(run.recipe_file, recipes.dump(recipe))
        except OSError as error:
            raise UserError(f"{run.path}: cannot be written: {error.strerror}") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has written. UserError: it is none."""
        run = cls(path)
        if not run.recipe_file.is_file():
            raise UserError(f"{path}: not a run folder (no {RECIPE} in it); give the folder that `danlu run` or `danlu train` wrote")
        return run

    def load_recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        return recipes.load(self.recipe_file)

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        write_json(self.path / name, value)

    def read(self, name: str) -> Any:
        """Read a JSON file of the run; None if it is not there."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: damaged JSON ({error}); delete it, the next stage writes it anew") from None
