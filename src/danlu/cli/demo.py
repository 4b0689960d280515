"""The verb that shows the doctor at work."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from danlu.cli.common import JSON, ROOT, print_json
from danlu.cli.doctor import LANGUAGE, language_of


@click.command()
@click.option("--fault", default="none", show_default=True, help="What is wrong with the run; --list names what there is.")
@click.option("--list", "names", is_flag=True, help="Name the faults, and train nothing.")
@ROOT
@LANGUAGE
@JSON
def demo(fault: str, names: bool, root: Path, language: str | None, as_json: bool) -> None:
    """Break a tiny run, and see the doctor at work.

    It takes half a minute on a CPU. With --list and --json, the faults as JSON.

    \b
    Examples:
      danlu demo --list
      danlu demo --fault lr-too-high
    """
    if as_json and not names:
        raise click.UsageError("--json is for --list; of a run, danlu doctor RUN --json says it")
    if names:
        from danlu.demo.faults import FAULTS

        if as_json:
            print_json({name: one.says for name, one in FAULTS.items()})
            return
        for name, one in FAULTS.items():
            click.echo(f"{name:<26} {one.says}")
        return
    from danlu.demo.run import demo as run

    run(fault, root, language_of(language), sys.stdout)
