"""The verbs that take metrics to other tools and from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from danlu.cli.common import JSON, print_json
from danlu.errors import UserError

if TYPE_CHECKING:
    from danlu.watch.export import Format


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--format", "kind", type=click.Choice(["visualdl", "tensorboard"]), required=True, help="Whose files to write.")
@click.option("--to", type=click.Path(path_type=Path), help="Folder of the files. Default: one of the format's name in the run.")
def export_run(run: Path, kind: Format, to: Path | None) -> None:
    """Write a run's metrics as files of VisualDL or TensorBoard.

    Scalars, histograms, events and the recipe. With watch.export in the recipe, training itself does so as it goes on.

    \b
    Examples:
      danlu watch export runs/quickstart --format visualdl
      danlu watch export runs/quickstart --format tensorboard --to logs/quickstart
    """
    from danlu import recipe as recipes
    from danlu.files import why
    from danlu.run_folder import RunFolder
    from danlu.watch.export import Facts, export, settings_of
    from danlu.watch.tables import metrics_file

    metrics, folder = metrics_file(run), RunFolder(run)
    facts = Facts({}, "")
    if folder.recipe_file.is_file():
        recipe = folder.load_recipe()
        facts = Facts(settings_of(recipe.model_dump(mode="json")), recipes.dump(recipe))
    place = to or metrics.parent / kind
    try:
        export(metrics, place, kind, facts).close()
    except OSError as error:
        raise UserError(f"{place}: cannot be written: {why(error)}") from None
    click.echo(f"wrote {place}")


@click.command(name="import")
@click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
@click.option("--to", type=click.Path(path_type=Path), help="Run folder to make. Default: runs/ and the log's name.")
@JSON
def import_log(log: Path, to: Path | None, as_json: bool) -> None:
    """Make a run of another program's log.

    LOG is a folder of event files of TensorBoard or VisualDL, one such file, a Trainer's trainer_state.json, or a table with
    metrics (.csv, .parquet). Metrics that danlu knows under another name, such as eval_loss, get its name.

    \b
    Examples:
      danlu watch import logs/other
      danlu watch import output/checkpoint-500/trainer_state.json --to runs/finetune
    """
    from danlu.watch.importing import import_log as make_run

    run = to or Path("runs") / (log.parent.name if log.stem == "trainer_state" and log.parent.name else log.stem)
    found = make_run(log, run)
    if as_json:
        print_json({"run": str(run), **found})
    else:
        click.echo(f"wrote {run}: {found['signals']} metrics with {found['points']:,} points, {found['histograms']} histograms")
