"""Verbs about published models."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from danlu.cli.common import RUN, note, run_folder


@click.command(name="import")
@click.argument("source", type=click.Path(path_type=Path), metavar="GGUF|FOLDER")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Folder to make.")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Type of the weights."
)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder whose tokenizer is taken instead of the source's.")
@click.option("--layers", help="Only so many layers, evenly spaced, or those of a list (0-7,23-29): a student to be distilled.")
def import_model(source: Path, to: Path, dtype: str, tokenizer: Path | None, layers: str | None) -> None:
    """Take over a published model.

    From a GGUF file, whose quantized weights become plain ones, or from a folder in the Hugging Face layout.

    \b
    Examples:
      danlu import SmolLM2-135M-Instruct.Q4_1.gguf --to smollm2
      danlu import downloads/Qwen3-0.6B --to qwen3 --dtype bf16
      danlu import qwen3 --to student --layers 14
    """
    from danlu.model.counts import parameter_count
    from danlu.pretrained.folder import import_model as make

    shape = make(source, to, dtype, tokenizer, layers)
    click.echo(f"wrote {to} ({shape.family}, {parameter_count(shape):,} parameters, {dtype})")


@click.command()
@RUN
@click.option("--system", help="What the system says before all turns.")
@click.option("--max-tokens", type=click.IntRange(1), help="New tokens an answer. Default: the recipe's.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy. Default: the recipe's.")
def chat(run: Path, system: str | None, max_tokens: int | None, temperature: float | None) -> None:
    """Talk with the run's newest checkpoint in the terminal.

    By its tokenizer's chat template. Each line is a turn; `/new` begins anew, and the end of the input (Ctrl-D) ends it.

    \b
    Examples:
      danlu chat runs/sft
      echo "What is a furnace?" | danlu chat runs/sft --temperature 0
    """
    from danlu import stages
    from danlu.chatting import Conversation
    from danlu.errors import UserError

    folder = run_folder(run)
    given = {name: it for name, it in (("max_tokens", max_tokens), ("temperature", temperature)) if it is not None}
    settings = stages.sampling_settings(folder.load_recipe(), given)
    trained = stages.open_trained(folder, note)
    terminal = sys.stdin.isatty()

    def begun() -> Conversation:
        made = Conversation(trained, settings)
        if system is not None:
            made.system(system)
        return made

    conversation = begun()
    while line := _asked(terminal):
        if line.strip() == "/new":
            conversation = begun()
        elif line.strip():
            try:
                for piece in conversation.ask(line.rstrip("\n")):
                    click.echo(piece, nl=False)
                click.echo()
            except UserError as error:
                note(f"danlu: {error}; /new begins anew")
    trained.engine.close()


def _asked(terminal: bool) -> str:
    """The next line with its end; empty at the end of the input."""
    if terminal:
        click.echo("> ", nl=False)
    return sys.stdin.readline()
