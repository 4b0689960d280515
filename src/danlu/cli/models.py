"""Verbs that look at models."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.common import JSON, Verbs, print_json


@click.group(name="model", cls=Verbs)
def model_group() -> None:
    """Look at models without training them.

    \b
    Example:
      danlu model show llama-3.1-8b
    """


@model_group.command(name="show")
@click.argument("model", metavar="PRESET|RECIPE|RUN|FOLDER")
@click.option(
    "--sequence-length", type=click.IntRange(1), help="Tokens, for the attention FLOPs. Default: the recipe's, else 2048."
)
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="Of the training. Default: the recipe's, else fp32."
)
@JSON
def model_show(model: str, sequence_length: int | None, precision: Any, as_json: bool) -> None:
    """Print parameters, FLOPs a token and bytes of a model.

    The bytes are those of weights, gradients and optimizer.
    MODEL is a preset (see `danlu model list`), a recipe, a run, or a folder with a Hugging Face config.json.

    \b
    Examples:
      danlu model show llama-3.1-8b
      danlu model show recipes/quickstart.yaml --json
    """
    from danlu.model.describe import describe
    from danlu.recipe.named import named

    found = named(model)
    length = sequence_length or found.sequence_length
    rows = describe(found.shape, sequence_length=length, precision=precision or found.precision)
    if as_json:
        print_json([{"section": row.section, "label": row.label, "value": row.value} for row in rows])
        return
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            click.echo(section)
        click.echo(f"  {row.label:<44} {row.text:>14}  {row.value:,.0f}")


@model_group.command(name="list")
@JSON
def model_list(as_json: bool) -> None:
    """The presets, smallest first.

    \b
    Example:
      danlu model list
    """
    from danlu.model.counts import parameter_count
    from danlu.model.describe import preset_rows

    rows = preset_rows()
    if as_json:
        print_json([{"preset": name, "parameters": parameter_count(shape), **shape.model_dump()} for name, _, shape in rows])
        return
    for name, parameters, shape in rows:
        click.echo(
            f"{name:<20} {parameters:>8}  {shape.layers} layers, hidden {shape.hidden_size}, vocabulary {shape.vocab_size:,}"
        )
