"""The run folder: one place that holds all that came of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from danlu import recipe as recipes
from danlu.errors import DanluError, UserError
from danlu.files import aside, locked, why, write_json, write_text
from danlu.recipe import Recipe

RECIPE = "recipe.yaml"
BUSY = "another danlu process works on this run; wait for it, or give this one another name"
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
        """The folder of this recipe's run, made if it is not there; its recipe.yaml is then this recipe.

        UserError: it holds the run of another recipe or something that is no run, another process writes it, or it cannot be
        written.
        """
        run = cls(path)
        with locked(path, BUSY):
            try:
                cls.check(recipe, path)
                if path.is_dir() and set(path.iterdir()) - {aside(run.recipe_file)} and not run.recipe_file.is_file():
                    raise UserError(f"{path} is not empty and holds no {RECIPE}; give the run another name or clear the folder")
                path.mkdir(exist_ok=True)
                write_text(run.recipe_file, recipes.dump(recipe))
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {why(error)}") from None
        return run

    @staticmethod
    def check(recipe: Recipe, path: Path) -> None:
        """UserError: the folder is there and holds the run of another recipe. Nothing is written."""
        run = RunFolder(path)
        if run.recipe_file.is_file() and (run.data.exists() or run.checkpoints.exists()):
            _check_same(recipes.load(run.recipe_file), recipe, path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has written. UserError: it is none."""
        run = cls(path)
        try:
            found = run.recipe_file.is_file()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {why(error)}") from None
        if not found:
            way_out = "give the folder that `danlu run` or `danlu train` wrote"
            raise UserError(f"{path}: not a run folder (no {RECIPE} in it); {way_out}")
        return run

    def load_recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        return recipes.load(self.recipe_file)

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the run. DanluError: it cannot be written (a full disk); the old one is still there."""
        try:
            write_json(self.path / name, value)
        except OSError as error:
            raise DanluError(f"{self.path / name}: cannot be written: {why(error)}") from None

    def read(self, name: str) -> Any:
        """Read a JSON file of the run; None if it is not there. UserError: it is damaged."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {why(error)}") from None
        except ValueError as error:
            raise UserError(f"{path}: damaged JSON ({error}); delete it, the next stage writes it anew") from None


def _check_same(old: Recipe, new: Recipe, folder: Path) -> None:
    conflicts = recipes.resume_conflicts(old, new)
    if not conflicts:
        return
    named = "; ".join(f"{field} was {before!r}, is now {after!r}" for field, before, after in conflicts[:NAMED_DIFFERENCES])
    more = f" and {len(conflicts) - NAMED_DIFFERENCES} more" if len(conflicts) > NAMED_DIFFERENCES else ""
    raise UserError(
        f"{folder} holds the run of another recipe ({named}{more}); "
        f"give this one another name (name={new.name}-2) or delete the folder"
    )
