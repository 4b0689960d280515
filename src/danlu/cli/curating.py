"""Verbs that filter documents without a recipe, and look at what was kept and what was not."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.common import JSON, note, print_json
from danlu.errors import UserError

if TYPE_CHECKING:
    from danlu.data.curate.job import Curated
    from danlu.recipe.data_sections import DataSection

STAGES = ("normalise", "boilerplate", "language", "quality")
"""What `danlu data filter` does unless it is told otherwise."""


def curate_into(output: Path, data: DataSection, as_json: bool) -> None:
    """Curate the sources of a data section into a folder, and print what became of them."""
    from danlu.data.curate.job import curate, settings_of, summary
    from danlu.data.sources import resolve

    try:
        listing = resolve(data.sources)
    except UserError as error:
        raise UserError(re.sub(r"^data\.sources\[\d+\]\.path: ", "", str(error))) from None
    done = curate(listing, Path(os.path.abspath(output)), settings_of(data), note)
    if as_json:
        print_json({name: value for name, value in done.report.items() if name not in ("identity", "shards")})
    else:
        click.echo(summary(done))


@click.command(name="filter")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder of the result; must be new or empty.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text, in JSON and Parquet.")
@click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="A field of the recipe's data.curate; may be given again."
)
@click.option("--bad-line-limit", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of bad records.")
@JSON
def filter_documents(
    inputs: tuple[str, ...], output: Path, text: str, overrides: tuple[str, ...], bad_line_limit: float, as_json: bool
) -> None:
    """Leave out documents by rules, and clean the others.

    Text is put in one form, lines that belong to a web page go, the language is told, and Gopher's, C4's, FineWeb's and danlu's
    Chinese rules judge. Any stage of a recipe's data.curate is switched on by --set STAGE=default, and off by --set STAGE=null.

    \b
    Examples:
      danlu data filter corpus --output corpus-clean
      danlu data filter 'crawl/*.jsonl.gz' --output clean --set language.keep=[en,zh] --set quality.gopher.least_words=20
      danlu data filter crawl --output clean --set noise_ratio=0.07 --set dedup=default
    """
    from danlu import recipe as recipes

    tree = {
        "name": "filter",
        "model": {"preset": "llama-5m"},  # a recipe has one; nothing is trained
        "data": {
            "sources": [{"path": path, "text": text} for path in inputs],
            "curate": {stage: {} for stage in STAGES},
            "bad_line_limit": bad_line_limit,
        },
    }
    recipe = recipes.parse(tree, [f"data.curate.{override}" for override in overrides])
    for line in recipes.ignored(recipe):
        note(f"warning: {line}")
    curate_into(output, recipe.data, as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER|RUN")
@click.option("--rejected", "part", flag_value="rejected", help="What was left out; the default.", default="rejected")
@click.option("--kept", "part", flag_value="kept", help="What was kept.")
@click.option("--noise", "part", flag_value="noise", help="What came back as noise.")
@click.option("--rule", help="Only what this stage or rule left out, such as quality or quality.gopher.least_words.")
@click.option("--grep", metavar="TEXT", help="Only documents that hold this text.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Documents, at most.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Documents that are passed over first.")
@click.option("--characters", type=click.IntRange(1), default=400, show_default=True, help="Of each text.")
@click.option("--summary", "totals", is_flag=True, help="Stages and rules with their counts, instead of documents.")
@JSON
def inspect(
    folder: Path,
    part: str,
    rule: str | None,
    grep: str | None,
    limit: int,
    skip: int,
    characters: int,
    totals: bool,
    as_json: bool,
) -> None:
    """Page through what curation kept and what it left out.

    FOLDER is what `danlu data filter` or `dedup` wrote, or a run that was prepared with data.curate. On a terminal the documents
    go through the pager.

    \b
    Examples:
      danlu data inspect clean
      danlu data inspect clean --rule quality.gopher --limit 5
      danlu data inspect runs/mine --kept --grep 丹炉
      danlu data inspect clean --summary
    """
    from danlu.data.curate import inspecting

    done = inspecting.open_result(folder)
    if totals:
        facts = inspecting.totals(done)
        if as_json:
            print_json(facts)
        else:
            click.echo(inspecting.totals_text(facts))
        return
    if rule and part != "rejected":
        raise UserError(f"--rule goes with what was left out, not with --{part}; leave one of the two out")
    found = inspecting.documents(done, part, rule, grep, skip, limit)
    if as_json:
        print_json([{**one, "text": one["text"][:characters]} for one in found])
        return
    _page(done, (inspecting.shown(one, characters) for one in found))


def _page(done: Curated, documents: Any) -> None:
    if sys.stdout.isatty():
        click.echo_via_pager(f"{one}\n\n" for one in documents)
        return
    count = 0
    for count, one in enumerate(documents, 1):  # noqa: B007
        click.echo(f"{one}\n")
    if not count:
        click.echo(f"{done.folder}: no such documents")
