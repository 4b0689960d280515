"""The verb that prints job files for clusters."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import OVERRIDES, RECIPE, ROOT, locate, note, one_machine
from danlu.errors import UserError


@click.command()
@RECIPE
@OVERRIDES
@ROOT
@click.option("--slurm", is_flag=True, help="A batch script for sbatch.")
@click.option("--kubernetes", is_flag=True, help="An Indexed Job and its Service, for kubectl apply.")
@click.option("--torchrun", is_flag=True, help="The command line for every machine.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Machines that share the processes evenly.")
@click.option("--image", help="Container image with danlu in it, for --kubernetes.")
@click.option("--claim", help="Volume claim that holds the folder of all runs, for --kubernetes.")
def launch(
    recipe: Path,
    overrides: tuple[str, ...],
    root: Path,
    slurm: bool,
    kubernetes: bool,
    torchrun: bool,
    nodes: int,
    image: str | None,
    claim: str | None,
) -> None:
    """Print a job file that trains on a cluster.

    It makes the run folder, which all machines must see, and prints how to train there: as many processes as the recipe's
    layout has, spread over --nodes machines. What the job prints goes to the run folder. When it is stopped, it saves, and goes
    on when it is started again.

    \b
    Examples:
      danlu launch recipe.yaml parallel.data=32 --slurm --nodes 4 > job.sh
      danlu launch recipe.yaml parallel.data=8 --kubernetes --image registry/danlu:1 --claim runs > job.yaml
      danlu launch recipe.yaml parallel.data=2 --torchrun
    """
    from danlu import engines
    from danlu.data.prepared import is_prepared
    from danlu.launch import jobs
    from danlu.run_folder import RunFolder

    kinds = [name for name, wanted in (("slurm", slurm), ("kubernetes", kubernetes), ("torchrun", torchrun)) if wanted]
    if len(kinds) != 1:
        raise UserError("for which kind of cluster? give one of --slurm, --kubernetes and --torchrun")
    kind = kinds[0]
    if kind == "kubernetes" and not (image and claim):
        raise UserError("--kubernetes needs --image, with danlu in it, and --claim, the volume claim that holds the runs")
    if kind != "kubernetes" and (image or claim):
        raise UserError(f"--image and --claim belong to --kubernetes; leave them out with --{kind}")

    settings, path = locate(recipe, overrides, root)
    if settings.automatic:
        raise one_machine()
    job = jobs.job(path, settings.parallel.processes, nodes, gpus=settings.train.device != "cpu")
    engines.check(settings)
    run = RunFolder.create(settings, path)  # sources and disks may be those of the cluster's machines alone
    if kind == "kubernetes":
        assert image is not None and claim is not None
        text = jobs.kubernetes(job, image, claim)
    else:
        text = jobs.slurm(job) if kind == "slurm" else jobs.torchrun(job)
    if settings.parallel.tensor > job.per_node or job.per_node % settings.parallel.tensor:
        note(f"danlu: parallel.tensor {settings.parallel.tensor} reaches over machines of {job.per_node} processes; that is slow")
    if not is_prepared(run.data):
        note(
            f"danlu: the data is not prepared yet; run: danlu prepare {path}  (else the first machine does, and the others wait)"
        )
    click.echo(text, nl=False)
