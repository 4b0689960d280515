"""Verbs about published models."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="import")
@click.argument("source", type=click.Path(path_type=Path), metavar="GGUF|FOLDER")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Folder to make.")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Type of the weights."
)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder whose tokenizer is taken instead of the source's.")
def import_model(source: Path, to: Path, dtype: str, tokenizer: Path | None) -> None:
    """Take over a published model, for model.hugging_face and other programs.

    From a GGUF file, whose quantized weights become plain ones, or from a folder in the Hugging Face layout.

    \b
    Examples:
      danlu import SmolLM2-135M-Instruct.Q4_1.gguf --to smollm2
      danlu import downloads/Qwen3-0.6B --to qwen3 --dtype bf16
    """
    from danlu.model.counts import parameter_count
    from danlu.pretrained.folder import import_model as make

    shape = make(source, to, dtype, tokenizer)
    click.echo(f"wrote {to} ({shape.family}, {parameter_count(shape):,} parameters, {dtype})")
