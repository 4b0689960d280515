"""The verb that trains a text model."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import JSON, note, print_json
from danlu.errors import UserError


@click.command(name="train-scorer")
@click.option("--good", multiple=True, required=True, metavar="INPUT", help="Texts of the kind that is wanted; again for more.")
@click.option("--bad", multiple=True, metavar="INPUT", help="Texts of the other kind; again for more.")
@click.option("--perplexity", is_flag=True, help="Learn how good texts go on, from --good alone.")
@click.option("--to", required=True, type=click.Path(path_type=Path), help="File of the model, such as mine.safetensors.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text, in JSON and Parquet.")
@click.option("--seed", default=0, show_default=True, help="Order in which texts are learnt from.")
@JSON
def train_scorer(
    good: tuple[str, ...], bad: tuple[str, ...], perplexity: bool, to: Path, text: str, seed: int, as_json: bool
) -> None:
    """Train a model that tells good texts from bad ones.

    An INPUT is a file, a folder or a glob. A tenth of the texts, which is not learnt from, says how good the model is. In a
    recipe, data.curate.quality_model.path names it; or data.curate.toxicity.path, when the toxic texts are those of --good.
    With --perplexity it is a model for data.curate.quality_model.perplexity_path.

    \b
    Examples:
      danlu data train-scorer --good books --bad 'crawl/*.jsonl' --to mine.safetensors
      danlu data train-scorer --good toxic.jsonl --bad clean.jsonl --to toxic.safetensors --json
      danlu data train-scorer --perplexity --good books --to perplexity.safetensors
    """
    from danlu.data.curate.linear.command import count_from, train_from

    if perplexity == bool(bad):
        raise UserError("--bad: give texts of the other kind, or --perplexity, which learns from --good alone")
    facts = count_from(good, to, text, note).facts if perplexity else train_from(good, bad, to, text, seed, note).facts
    if as_json:
        print_json(facts)
    elif perplexity:
        click.echo(
            "{to}: learnt from {trained:,} texts; of {held_out:,} others half have a perplexity of {perplexity_50} or less, "
            "nine tenths {perplexity_90}, 99 of 100 {perplexity_99}; {rows_used:.0%} of its rows are used".format(to=to, **facts)
        )
    else:
        click.echo(
            "{to}: learnt from {trained:,} texts; on {held_out:,} others an AUC of {auc}, at 0.5 a precision of {precision} "
            "and a recall of {recall}, a calibration error of {calibration_error}".format(to=to, **facts)
        )
