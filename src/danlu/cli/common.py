"""What verbs share: arguments, options, and how a recipe or a run is opened."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.errors import UserError

if TYPE_CHECKING:
    from danlu.recipe import Recipe
    from danlu.run_folder import RunFolder

RECIPE = click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE|RUN")
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
ROOT = click.option(
    "--runs", "root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of all runs."
)
RUN = click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
CACHE = click.option(
    "--cache-dtype",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    show_default=True,
    help="Type of the keys and values; int8 takes little more than a quarter of the memory, and is computed in torch.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class Verbs(click.Group):
    """Lists its verbs in the order in which a person needs them, and shows its help when none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class DefaultVerbs(Verbs):
    """Verbs with a default: what is no verb is an argument of it."""

    default: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args and args[0] not in known:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def load(recipe: Path, overrides: tuple[str, ...]) -> Recipe:
    from danlu import recipe as recipes
    from danlu.run_folder import RunFolder

    return recipes.load(RunFolder.open(recipe).recipe_file if recipe.is_dir() else recipe, overrides)


def open_run(recipe: Path, overrides: tuple[str, ...], root: Path, trains: bool) -> tuple[Recipe, RunFolder]:
    """The recipe and its run folder: the given one, or, under a new name, another one below the folder of all runs.

    With trains, an engine that cannot run here is an error before any work is done.
    """
    from danlu import engines

    settings, path = locate(recipe, overrides, root)
    if trains:
        engines.check(settings)
        settings = planned(settings)
    return settings, make_folder(settings, path, trains)


def make_folder(settings: Recipe, path: Path, trains: bool) -> RunFolder:
    """The recipe's run folder, made if all that the recipe names is there. UserError: something is not, and none is made."""
    from danlu import ready
    from danlu.run_folder import RunFolder

    ready.check(settings, path, trains)
    return RunFolder.create(settings, path)


def locate(recipe: Path, overrides: tuple[str, ...], root: Path) -> tuple[Recipe, Path]:
    """The recipe and where its run folder is or will be; nothing is written."""
    settings = load(recipe, overrides)
    if root.exists() and not root.is_dir():
        raise UserError(f"{root}: is not a folder; name the folder of all runs with --runs")
    same = recipe.is_dir() and load(recipe, ()).name == settings.name
    return settings, recipe if same else root / settings.name


def planned(settings: Recipe) -> Recipe:
    """The recipe with what the planner chooses for this machine in its automatic sections; says what it chose."""
    if not settings.automatic:
        return settings
    from danlu import auto

    settings, told = auto.filled(settings)
    click.echo("\n".join(told))
    return settings


def one_machine() -> UserError:
    """What `auto` cannot do."""
    return UserError(
        "parallel: auto plans for the devices of this machine alone; for several, or processes that another launcher started, "
        "give the layout that this prints: danlu plan RECIPE --hardware NAME --devices N"
    )


def run_folder(path: Path) -> RunFolder:
    from danlu.run_folder import RunFolder

    return RunFolder.open(path)


def note(line: str) -> None:
    click.echo(line, err=True)


def print_json(value: Any) -> None:
    # Where the terminal cannot show a character, its escape is still JSON, and a question mark would be another text.
    click.echo(json.dumps(value, indent=2, ensure_ascii=codecs.lookup(sys.stdout.encoding).name != "utf-8"))
