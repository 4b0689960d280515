"""The verb that reads a profile."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import JSON, RUN, print_json, run_folder


@click.command()
@RUN
@click.option("--operators", type=click.IntRange(1), default=15, show_default=True, help="Lines of the table.")
@JSON
def profile(run: Path, operators: int, as_json: bool) -> None:
    """Say what bounds a run's speed.

    Of the steps that `danlu train RECIPE --profile steps=10:15` has profiled: where their time went, the operators that took it,
    and what they reach of this machine's own matrix and memory rates.

    \b
    Examples:
      danlu profile runs/quickstart
      danlu profile runs/quickstart --operators 40
    """
    from danlu.watch import profile as profiles

    found = profiles.profiles(run_folder(run).path)
    if as_json:
        print_json([one.as_json() for one in found])
    else:
        click.echo("\n".join(profiles.lines(found, operators)))
