"""The verbs of watching."""

from __future__ import annotations

import click

from danlu.cli.common import Verbs


@click.group(name="watch", cls=Verbs)
def watch_group() -> None:
    """Take metrics to other tools and from them.

    \b
    Examples:
      danlu watch export runs/quickstart --format tensorboard --to logs/quickstart
      danlu watch import logs/other --to runs/other
    """
