"""Verbs that make a run: all its stages, or one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from danlu.cli.common import OVERRIDES, RECIPE, ROOT, RUN, locate, make_folder, one_machine, open_run, planned, run_folder
from danlu.errors import UserError


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
    from danlu.environment import place
    from danlu.pipeline import run_stages

    if (rank := place()) is not None:
        raise UserError(f"`danlu run` starts its own processes, and {rank.starter} has started several; use `danlu train` there")
    settings, folder = open_run(recipe, overrides, root, trains=True)
    run_stages(settings, folder, sys.stdout)


@click.command()
@RECIPE
@OVERRIDES
@ROOT
@click.option("--show", type=click.IntRange(1), help="Print so many samples, with what is supervised in ⟦brackets⟧.")
def prepare(recipe: Path, overrides: tuple[str, ...], root: Path, show: int | None) -> None:
    """Turn the recipe's sources into token shards.

    \b
    Example:
      danlu prepare recipes/quickstart.yaml
    """
    from danlu import stages

    settings, folder = open_run(recipe, overrides, root, trains=False)
    with stages.writing(folder):
        prepared = stages.prepare(settings, folder, click.echo)
    if show is not None:
        from danlu.data.chat.show import shown

        for sample in shown(prepared, show):
            click.echo(sample)


@click.command()
@RECIPE
@OVERRIDES
@ROOT
@click.option("--nodes", type=click.IntRange(1), help="Machines that the processes are spread over evenly. Default: this one.")
@click.option("--node-rank", type=click.IntRange(0), help="Which of them this is, from 0. The first one prints and writes.")
@click.option("--rendezvous", metavar="HOST:PORT", help="The first machine, and a port there, where they meet.")
@click.option("--profile", metavar="steps=FIRST:LAST", help="Profile these steps; `danlu profile` reads it.")
def train(
    recipe: Path,
    overrides: tuple[str, ...],
    root: Path,
    nodes: int | None,
    node_rank: int | None,
    rendezvous: str | None,
    profile: str | None,
) -> None:
    """Train, or go on from the newest good checkpoint.

    Data is prepared first if it is not there. Ctrl-C once finishes the step and saves; twice stops at once.
    The processes of the layout are started here; with torchrun or srun, each of them runs this same command.

    \b
    Examples:
      danlu train recipes/quickstart.yaml
      danlu train runs/quickstart
      danlu train recipes/quickstart.yaml name=hot train.optimizer.learning_rate=1e-3
      danlu train recipes/quickstart.yaml --profile steps=10:15
      danlu train recipe.yaml parallel.data=32 --nodes 4 --node-rank 0 --rendezvous node0:29500
      torchrun --nproc-per-node 4 -m danlu train recipe.yaml parallel.data=4
    """
    from danlu import engines, environment, stages
    from danlu.launch import joined
    from danlu.launch.start import await_folder, own_ranks, start
    from danlu.plural import many
    from danlu.run_folder import RunFolder

    if profile is not None:
        steps, _, profiled = profile.partition("=")
        if steps != "steps":
            raise UserError(f"--profile {profile}: names no steps; write it like --profile steps=10:15")
        overrides = (*overrides, f"watch.profile={profiled}")
    machines = environment.nodes(nodes, node_rank, rendezvous)
    if nodes is not None:
        environment.forget()
    rank = environment.place()
    settings, path = locate(recipe, overrides, root)
    engines.check(settings)
    if settings.automatic and (rank is not None or machines.count > 1):
        raise one_machine()
    settings = planned(settings)
    own_ranks(settings, machines)
    if rank is not None:
        joined.train(rank, settings, path, lambda: make_folder(settings, path, trains=True), click.echo, sys.stdout)
        return
    if machines.rank > 0:  # the first machine makes the folder and all that concerns the run as a whole
        await_folder(path)
        RunFolder.check(settings, path)
        start(settings, path, machines)
        return
    folder = make_folder(settings, path, trains=True)
    with stages.writing(folder):
        prepared = stages.prepare(settings, folder, click.echo)
        if (summary := stages.finished(settings, folder, prepared, click.echo)) is not None:
            click.echo(f"already trained: {summary['steps']} of {many(settings.train.steps, 'step')}")
        else:
            stages.train(settings, folder, prepared, sys.stdout, machines)
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
