"""The verbs of watching."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import RUN, DefaultVerbs, run_folder


class _WatchVerbs(DefaultVerbs):
    default = "page"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or [self.default])


@click.group(name="watch", cls=_WatchVerbs)
def watch_group() -> None:
    """Show runs on a live page in the browser.

    RUN is a run folder, live or finished, or a folder of runs; without one, the folder runs. The page is on this machine
    alone, asks no other host for anything and changes nothing. Ctrl-C ends it.

    \b
    Examples:
      danlu watch
      danlu watch runs/quickstart runs/hot
      danlu watch export runs/quickstart --format tensorboard
    """


@watch_group.command(name="page", hidden=True)
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option("--port", type=click.IntRange(0, 65535), help="On 127.0.0.1; 0: any that is free. Default: 8267, or else any.")
@click.option("--with-parent", is_flag=True, hidden=True, help="End with the process that started this one.")
def page(places: tuple[Path, ...], port: int | None, with_parent: bool) -> None:
    """Serve the page.

    \b
    Examples:
      danlu watch page
      danlu watch page runs/quickstart --port 0
    """
    from danlu import live_page
    from danlu.parent import end_with_parent

    if with_parent:
        end_with_parent()
    live_page.serve(places or (Path("runs"),), port, lambda address: click.echo(f"watch: {address}"))


@click.command()
@RUN
def report(run: Path) -> None:
    """Write the run's page as one file that opens offline.

    \b
    Example:
      danlu report runs/quickstart
    """
    from danlu.reporting import write_report

    click.echo(f"wrote {write_report(run_folder(run).path)}")
