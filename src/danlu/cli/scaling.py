"""What `danlu plan` says of scaling up: from runs of small sizes to a larger one, and from one width to another."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import load, print_json


def from_runs(recipe: str, others: tuple[str, ...], runs: tuple[str, ...], as_json: bool) -> None:
    """Others are overrides of the recipe, and more runs, as a shell spells out a glob that is not in quotes."""
    from danlu import scaling_up

    overrides = tuple(other for other in others if "=" in other)
    more = tuple(other for other in others if "=" not in other)
    answer = scaling_up.scale_up(load(Path(recipe), overrides), [*runs, *more])
    if as_json:
        print_json(answer)
    else:
        click.echo("\n".join(scaling_up.lines(answer)))


def coordinates(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Trains for moments, so that an engine is needed."""
    from danlu import engines, widths

    settings = load(Path(recipe), overrides)
    engines.check(settings.alone)
    check = widths.coordinate_check(settings)
    if as_json:
        print_json(check)
    else:
        click.echo("\n".join(widths.lines(check)))
