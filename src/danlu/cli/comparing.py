"""The verb that holds the engines against each other."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import JSON, OVERRIDES, RECIPE, ROOT, note, open_run, print_json
from danlu.errors import UserError


@click.command("compare-engines")
@RECIPE
@OVERRIDES
@ROOT
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Of the recipe, from its first one.")
@JSON
@click.pass_context
def compare_engines(
    context: click.Context, recipe: Path, overrides: tuple[str, ...], root: Path, steps: int, as_json: bool
) -> None:
    """Train on both engines: is it the same model?

    Also with a change from one to the other halfway. Where they part, the first layer is named whose output, gradient or update
    differs, and the exit code is 1. In one process each; nothing of it is kept but the prepared data.

    \b
    Example:
      danlu compare-engines recipes/quickstart.yaml --steps 10
    """
    from danlu import engines, stages
    from danlu.compare.engines import ENGINES, compare, lines

    overrides = tuple(each for each in overrides if not each.startswith("train.engine="))
    settings, run = open_run(recipe, overrides, root, trains=False)
    for engine in ENGINES:
        engines.check(settings.alone.model_copy(update={"train": settings.train.model_copy(update={"engine": engine})}))
    if steps > settings.train.steps:
        raise UserError(f"--steps {steps} is more than train.steps ({settings.train.steps}); give at most that many")
    with stages.writing(run):
        stages.prepare(settings, run, note)
    answer = compare(run.recipe_file, run.data, steps, note)
    if as_json:
        print_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
    if not answer["equal"]:
        context.exit(1)
