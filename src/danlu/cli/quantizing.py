"""The verb that makes a model smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from danlu.cli.common import JSON, note, print_json
from danlu.errors import UserError

GROUP = 32


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Target folder.")
@click.option(
    "--scheme",
    type=click.Choice(["w8a8", "w8a16", "w4a16"]),
    default="w8a8",
    show_default=True,
    help="Bits of weights and activations; with 16, activations stay floats, and it is as slow as float32.",
)
@click.option("--group", type=click.IntRange(1), help=f"Inputs that share a scale. Default: all of a row; w4a16: {GROUP}.")
@click.option(
    "--keep", multiple=True, metavar="PATTERN", help="Modules that stay float32, such as model.embed_tokens. Repeatable."
)
@click.option("--calibrate", type=click.Path(path_type=Path), help="Text that shows what inputs the matrices meet.")
@click.option(
    "--method",
    "methods",
    type=click.Choice(["gptq", "smoothquant"]),
    multiple=True,
    help="What --calibrate is for. Repeatable. Default: gptq.",
)
@click.option("--calibration-tokens", type=click.IntRange(1), default=8192, show_default=True, help="Of --calibrate, at most.")
@click.option("--file", type=click.Path(path_type=Path), help="Text to measure perplexity on. Default: a run's held-out text.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text, in JSON and Parquet.")
@click.option("--tokens", type=click.IntRange(2), default=8192, show_default=True, help="Of --file, at most.")
@click.option("--int8-cache", is_flag=True, help="Measure too what keys and values in 8 bits cost the float model.")
@click.option("--replace", is_flag=True, help="Overwrite a folder made before.")
@JSON
def quantize(path: Path, to: Path, replace: bool, as_json: bool, **options: Any) -> None:
    """Write the model in 8 or 4 bits, and what that costs.

    8 bits are a quarter of the bytes of float32. With it go perplexity before and after on the text, and what loses most.

    \b
    Examples:
      danlu quantize runs/quickstart --to small
      danlu quantize my-model --to small --file README.md --json
      danlu quantize my-model --to small --scheme w4a16 --calibrate corpus.jsonl
    """
    from danlu import quantizing
    from danlu.compress.plan import Method, Plan

    if options["methods"] and options["calibrate"] is None:
        raise UserError(f"--method {options['methods'][0]} needs a text: name one with --calibrate")
    methods: tuple[Method, ...] = options["methods"] or (("gptq",) if options["calibrate"] else ())
    group = options["group"] or (GROUP if options["scheme"] == "w4a16" else 0)
    plan = Plan(options["scheme"], group, options["keep"], methods)
    texts = [(options["calibrate"], options["calibration_tokens"]), (options["file"], options["tokens"])]
    calibrate, measure = (None if file is None else quantizing.Text(file, options["text"], count) for file, count in texts)
    result = quantizing.quantize(path, to, plan, calibrate, measure or options["tokens"], options["int8_cache"], replace, note)
    if as_json:
        print_json(result)
    else:
        _tell(to, result)


def _tell(to: Path, result: dict[str, Any]) -> None:
    click.echo(f"wrote {to}: {result['bytes']:,} bytes, {result['size_ratio']:.1%} of float32")
    if result["perplexity_before"] is not None:
        click.echo(
            f"perplexity {result['perplexity_before']:.3f} before, {result['perplexity_after']:.3f} after "
            f"({result['perplexity_increase']:+.2%}), on {result['tokens']:,} tokens, computed by {result['executor']}"
        )
    if result["perplexity_int8_cache"] is not None:
        click.echo(
            f"perplexity {result['perplexity_int8_cache']:.3f} with float weights and an int8 cache "
            f"({result['int8_cache_increase']:+.2%})"
        )
    of = "outputs" if result["calibration_tokens"] else "weights"
    click.echo(
        f"errors of {of}, by layer: " + ", ".join(f"{_short(name)} {it:.2%}" for name, it in result["layer_errors"].items())
    )
    click.echo("most is lost in: " + ", ".join(f"{name} {error:.2%}" for name, error in result["worst"].items()))
    kept = result["suggestion"]
    named = " ".join(f"--keep {name}" for name in kept["keep"])
    click.echo(f"these stay float32, for {kept['size_ratio']:.1%} of its bytes, with: {named}")


def _short(layer: str) -> str:
    return layer.removeprefix("model.layers.")
