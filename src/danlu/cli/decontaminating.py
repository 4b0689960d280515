"""The verb that leaves out documents which repeat test texts."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import JSON
from danlu.cli.curating import curate_into


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--against", multiple=True, required=True, metavar="FILE", help="Test texts: a file, folder or glob; again for more."
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder of the result; must be new or empty.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text of an INPUT.")
@click.option("--words", default=13, show_default=True, help="Words, or Chinese characters, in a row that must not be shared.")
@click.option(
    "--threshold", default=0.8, show_default=True, help="Jaccard similarity to a whole test text that counts as a copy."
)
@click.option("--bad-line-limit", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of bad records.")
@JSON
def decontaminate(
    inputs: tuple[str, ...],
    against: tuple[str, ...],
    output: Path,
    text: str,
    words: int,
    threshold: float,
    bad_line_limit: float,
    as_json: bool,
) -> None:
    """Leave out documents that hold what a model will be tested on.

    Every text in the test files counts, questions and answers alike, from 8 words on. rejected/ lists what was left out, with the
    test and the words that it shares. The same in a recipe: data.curate.decontaminate.

    \b
    Examples:
      danlu data decontaminate corpus --against gsm8k.jsonl --output corpus-untested
      danlu data decontaminate 'crawl/*.jsonl.gz' --against tests --words 20 --output crawl-untested --json
    """
    from danlu import recipe as recipes

    stage = {"against": list(against), "validation_words": None, "words": words, "threshold": threshold}
    tree = {
        "name": "decontaminate",
        "model": {"preset": "llama-5m"},  # a recipe has one; nothing is trained
        "data": {
            "sources": [{"path": path, "text": text} for path in inputs],
            "curate": {"decontaminate": stage},
            "bad_line_limit": bad_line_limit,
        },
    }
    curate_into(output, recipes.parse(tree, []).data, as_json)
