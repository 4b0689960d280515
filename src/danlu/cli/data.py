"""Verbs on raw text, without a recipe."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from danlu.cli.common import JSON, Verbs, note
from danlu.cli.curating import curate_into, filter_documents, inspect
from danlu.cli.decontaminating import decontaminate
from danlu.cli.scorers import train_scorer
from danlu.errors import UserError


@click.group(name="data", cls=Verbs)
def data_group() -> None:
    """Choose documents by single stages of curation.

    \b
    Examples:
      danlu data dedup corpus --output corpus-once
      danlu data filter corpus --output corpus-clean
    """
    gc.set_threshold(100_000)  # what is imported stays: to look through it after every 700 objects takes a tenth of a small job


@data_group.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder of the result; must be new or empty.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text, in JSON and Parquet.")
@click.option(
    "--threshold",
    default=0.8,
    show_default=True,
    help="Jaccard similarity from which two documents are copies; 1: only the same words in the same order.",
)
@click.option("--permutations", default=112, show_default=True, help="Hash functions of MinHash.")
@click.option("--rows", type=int, help="Hashes in a band. Default: as many as still find a pair at the threshold.")
@click.option("--shingle", default=5, show_default=True, help="Words, or characters of unspaced scripts, in a shingle.")
@click.option("--exact", is_flag=True, help="Check candidates by their true Jaccard, not by its estimate.")
@click.option("--paragraphs", is_flag=True, help="Then take out paragraphs and long lines that many documents have.")
@click.option(
    "--workers", type=click.IntRange(0), default=0, show_default=True, help="Processes; 0: one a core, if there is enough to do."
)
@click.option("--memory", default="4GiB", show_default=True, help="What sorting may take, such as 512MiB.")
@click.option("--bad-line-limit", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of bad records.")
@JSON
def dedup(
    inputs: tuple[str, ...],
    output: Path,
    text: str,
    threshold: float,
    permutations: int,
    rows: int | None,
    shingle: int,
    exact: bool,
    paragraphs: bool,
    workers: int,
    memory: str,
    bad_line_limit: float,
    as_json: bool,
) -> None:
    """Leave out copies and near-copies of documents.

    An INPUT is a file, a folder or a glob. The result has kept/ and rejected/, a JSON line for each document, and report.json.
    Run the same command again to go on with an interrupted one.

    \b
    Examples:
      danlu data dedup corpus --output corpus-once
      danlu data dedup 'crawl/*.jsonl.gz' --text content --threshold 0.9 --output crawl-once
      danlu data dedup crawl --paragraphs --output crawl-once
    """
    from pydantic import ValidationError

    from danlu.recipe.data_sections import DataSection
    from danlu.recipe.explain import from_validation
    from danlu.recipe.ignored import beside_equal

    settings: dict[str, object] = {"threshold": threshold, "permutations": permutations, "rows": rows, "shingle": shingle}
    settings |= {"verify": "exact" if exact else "estimate", "paragraphs": {} if paragraphs else None}
    try:
        section = DataSection.model_validate(
            {
                "sources": [{"path": path, "text": text} for path in inputs],
                "curate": {"dedup": settings, "workers": workers},
                "memory": memory,
                "bad_line_limit": bad_line_limit,
            }
        )
    except ValidationError as error:
        first = from_validation(error, ("data",))[0]
        raise UserError(f"--{str(first.path[-1]).replace('_', '-')}: {first.text}") from None
    assert section.curate is not None and section.curate.dedup is not None
    for line in beside_equal(section.curate.dedup):
        note(f"warning: {line}")
    curate_into(output, section, as_json)


for _verb in (filter_documents, decontaminate, train_scorer, inspect):
    data_group.add_command(_verb)
