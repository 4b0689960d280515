"""Verbs that look at recipes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from danlu.cli.common import JSON, OVERRIDES, RECIPE, Verbs, load, print_json


@click.group(name="recipe", cls=Verbs)
def recipe_group() -> None:
    """Look at recipes.

    \b
    Example:
      danlu recipe show recipes/quickstart.yaml
    """


@recipe_group.command(name="show")
@RECIPE
@OVERRIDES
@JSON
def recipe_show(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the resolved recipe and what differs from the defaults.

    \b
    Example:
      danlu recipe show recipes/quickstart.yaml train.steps=200
    """
    from danlu import recipe as recipes

    settings = load(recipe, overrides)
    differences = recipes.differences(settings)
    if as_json:
        changed = [{"field": field, "value": value, "default": default} for field, value, default in differences]
        shown = {"recipe": settings.model_dump(mode="json"), "differences": changed, "ignored": recipes.ignored(settings)}
        print_json(shown)
        return
    click.echo(recipes.dump(settings), nl=False)
    click.echo("\n# differs from the defaults:")
    for field, value, default in differences:
        click.echo(f"#   {field}: {json.dumps(value, ensure_ascii=False)} (default {json.dumps(default, ensure_ascii=False)})")
    for line in recipes.ignored(settings):
        click.echo(f"# ignored: {line}")


@recipe_group.command(name="schema")
def recipe_schema() -> None:
    """Print the JSON Schema of a recipe, for editors.

    With it an editor completes and checks a recipe as you type.

    \b
    Example:
      danlu recipe schema > recipe.schema.json
    """
    from danlu import recipe as recipes

    print_json(recipes.json_schema())
