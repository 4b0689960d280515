"""The verb that gives metrics to other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from danlu.cli.common import JSON, print_json
from danlu.errors import UserError
from danlu.files import why


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--metric", "patterns", multiple=True, metavar="GLOB", help="Only these, such as 'train/*'; may be repeated.")
@click.option("--csv", "as_csv", is_flag=True, help="A table of step, metric and value.")
@click.option("--parquet", "as_parquet", is_flag=True, help="The same as Parquet; needs --to.")
@click.option("--to", type=click.Path(path_type=Path), help="File to write with --csv or --parquet. Default: the screen.")
@JSON
def metrics(run: Path, patterns: tuple[str, ...], as_csv: bool, as_parquet: bool, to: Path | None, as_json: bool) -> None:
    """Print what a run has recorded, live or finished.

    Without a format, one line a metric. Of steps that a resume has replaced the newest values count.

    \b
    Examples:
      danlu metrics runs/quickstart
      danlu metrics runs/quickstart --metric 'train/*' --metric 'validation/*' --csv
      danlu metrics runs/quickstart --parquet --to metrics.parquet
    """
    from danlu.watch import tables

    if as_csv + as_parquet + as_json > 1:
        raise UserError("--csv, --parquet and --json exclude each other; give one")
    if as_parquet and to is None:
        raise UserError("--parquet writes no text; name a file with --to")
    if to is not None and not (as_csv or as_parquet):
        raise UserError("--to needs --csv or --parquet")
    found = tables.signals(tables.metrics_file(run), patterns)
    if as_json:
        print_json(tables.as_json(found))
    elif to is not None:
        try:
            _write(found, to, as_parquet)
        except OSError as error:
            raise UserError(f"--to {to}: cannot be written: {why(error)}") from None
    elif as_csv:
        tables.write_csv(found, sys.stdout)
    else:
        click.echo("\n".join(tables.summary_lines(found)))
    if to is not None:
        click.echo(f"wrote {to}")


def _write(found: Any, to: Path, as_parquet: bool) -> None:
    from danlu.watch import tables

    if as_parquet:
        tables.write_parquet(found, to)
        return
    with to.open("w", encoding="utf-8", newline="") as stream:
        tables.write_csv(found, stream)
