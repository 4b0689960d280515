"""Verbs that make a run: all its stages, or one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from danlu.cli.common import OVERRIDES, RECIPE, ROOT, RUN, open_run, run_folder


@click.command()
@RECIPE
@OVERRIDES
@ROOT
def run(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Run every stage that the recipe names, in order.

    Run the same command again to go on with an interrupted run; what is there already is not done again.

    \b
    Examples:
      danlu run recipes/quickstart.yaml
      danlu run recipes/quickstart.yaml name=short train.steps=50
    """
    from danlu.pipeline import run_stages

    settings, folder = open_run(recipe, overrides, root, trains=True)
    run_stages(settings, folder, sys.stdout)


@click.command()
@RECIPE
@OVERRIDES
@ROOT
def prepare(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Turn the recipe's sources into token shards, and nothing else.

    \b
    Example:
      danlu prepare recipes/quickstart.yaml
    """
    from danlu import stages

    settings, folder = open_run(recipe, overrides, root, trains=False)
    with stages.writing(folder):
        stages.prepare(settings, folder, click.echo)


@click.command()
@RECIPE
@OVERRIDES
@ROOT
def train(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Train, or go on from the newest good checkpoint.

    Data is prepared first if it is not there. Ctrl-C once finishes the step and saves; twice stops at once.

    \b
    Examples:
      danlu train recipes/quickstart.yaml
      danlu train runs/quickstart
      danlu train recipes/quickstart.yaml name=hot train.optimizer.learning_rate=1e-3
    """
    from danlu import stages

    settings, folder = open_run(recipe, overrides, root, trains=True)
    with stages.writing(folder):
        prepared = stages.prepare(settings, folder, click.echo)
        if (summary := stages.finished(settings, folder, prepared, click.echo)) is not None:
            click.echo(f"already trained: {summary['steps']} of {settings.train.steps} steps")
        else:
            stages.train(settings, folder, prepared, sys.stdout)
    click.echo(f"report: {folder.path / 'report.html'}")


@click.command(hidden=True)
@RUN
def worker(run: Path) -> None:
    """One rank of a layout, started by `danlu train`.

    \b
    Example:
      torchrun --nproc-per-node 4 -m danlu worker runs/quickstart
    """
    from danlu import stages

    stages.worker(run_folder(run), sys.stdout)
