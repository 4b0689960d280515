"""The command line: a verb parses, calls one function and prints. Rooms are imported inside the verbs, so that help is instant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu import __version__
from danlu.errors import EXIT_INTERRUPTED, DanluError

if TYPE_CHECKING:
    from danlu.recipe import Recipe
    from danlu.run_folder import RunFolder

RECIPE = click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE|RUN")
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
ROOT = click.option("--runs", "root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of all runs.")
RUN = click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="danlu")
def cli() -> None:
    """danlu (丹炉): from raw text to a served large language model.

    One recipe (a YAML file) describes a run; one run folder holds all that came of it.
    Any field of the recipe can be overridden behind it: train.steps=200

    \b
    Examples:
      danlu run recipes/quickstart.yaml
      danlu generate runs/quickstart --prompt "import os"
    """


@cli.command()
@RECIPE
@OVERRIDES
@ROOT
def run(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Run every stage that the recipe names, in order.

    Run the same command again to go on with an interrupted run.

    \b
    Examples:
      danlu run recipes/quickstart.yaml
      danlu run recipes/quickstart.yaml name=short train.steps=50
    """
    from danlu.pipeline import run_stages

    settings, folder = _open(recipe, overrides, root)
    run_stages(settings, folder, sys.stdout)


@cli.command()
@RECIPE
@OVERRIDES
@ROOT
def prepare(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Turn the recipe's sources into token shards, and nothing else.

    \b
    Example:
      danlu prepare recipes/quickstart.yaml
    """
    from danlu import stages

    settings, folder = _open(recipe, overrides, root)
    with stages.writing(folder):
        stages.prepare(settings, folder, click.echo)


@cli.command()
@RECIPE
@OVERRIDES
@ROOT
def train(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Train, or go on training: a run folder continues from its newest good checkpoint.

    Data is prepared first if it is not there. Ctrl-C once finishes the step and saves; twice stops at once.

    \b
    Examples:
      danlu train recipes/quickstart.yaml
      danlu train runs/quickstart
      danlu train recipes/quickstart.yaml name=hot train.optimizer.learning_rate=1e-3
    """
    from danlu import stages

    settings, folder = _open(recipe, overrides, root)
    with stages.writing(folder):
        prepared = stages.prepare(settings, folder, click.echo)
        stages.train(settings, folder, prepared, sys.stdout)
    click.echo(f"report: {folder.path / 'report.html'}")


@cli.command()
@RUN
@click.option("--file", type=click.Path(path_type=Path), help="A text, JSON or Parquet file to evaluate on instead.")
@click.option("--text", default="text", show_default=True, help="Field of --file that holds the text, in JSON and Parquet.")
@JSON
def evaluate(run: Path, file: Path | None, text: str, as_json: bool) -> None:
    """Loss, perplexity and bits per byte on the validation split or on a file.

    Bits per byte compare models with different tokenizers.

    \b
    Examples:
      danlu evaluate runs/quickstart
      danlu evaluate runs/quickstart --file README.md
    """
    from danlu import stages

    result = stages.evaluate(_run_folder(run), file, text, _note)
    if as_json:
        _print_json(result)
        return
    click.echo(f"{result['source']}: {result['documents']:,} documents, {result['tokens']:,} tokens, {result['bytes']:,} bytes")
    click.echo(f"loss {result['loss']:.4f} nats a token, perplexity {result['perplexity']:.2f}, {result['bits_per_byte']:.4f} bits per byte")


@cli.command()
@RUN
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; may be repeated. Default: the recipe's prompts.")
@click.option("--max-tokens", type=click.IntRange(1), help="New tokens. Default: the recipe's.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy. Default: the recipe's.")
@click.option("--top-k", type=click.IntRange(0), help="Only the k most likely tokens; 0: all. Default: the recipe's.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Only the most likely mass. Default: the recipe's.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the sampling. Default: the recipe's.")
@JSON
def generate(
    run: Path,
    prompts: tuple[str, ...],
    max_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Continue one or more prompts with the run's newest checkpoint.

    \b
    Examples:
      danlu generate runs/quickstart --prompt "def main():"
      danlu generate runs/quickstart --prompt "import os" --temperature 0 --max-tokens 20
    """
    from danlu import stages
    from danlu.engines.base import Sampling

    trained = stages.open_trained(_run_folder(run), _note)
    defaults = trained.recipe.generate
    sampling = Sampling(
        max_tokens=defaults.max_tokens if max_tokens is None else max_tokens,
        temperature=defaults.temperature if temperature is None else temperature,
        top_k=defaults.top_k if top_k is None else top_k,
        top_p=defaults.top_p if top_p is None else top_p,
        seed=defaults.seed if seed is None else seed,
    )
    made = []
    for prompt in prompts or defaults.prompts:
        pieces = stages.generate(trained, prompt, sampling)
        if as_json:
            made.append({"prompt": prompt, "text": "".join(pieces), "step": trained.step})
            continue
        click.echo(prompt, nl=False)
        for piece in pieces:
            click.echo(piece, nl=False)
        click.echo()
    if as_json:
        _print_json(made)


@cli.command()
@RUN
@click.option("--to", type=click.Path(path_type=Path), help="Target folder. Default: export/ in the run folder.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Type of the weights.")
@click.option("--replace", is_flag=True, help="Overwrite an export made before.")
def export(run: Path, to: Path | None, dtype: str, replace: bool) -> None:
    """Write the model in the Hugging Face layout (config, safetensors, tokenizer), for transformers, vLLM and others.

    \b
    Example:
      danlu export runs/quickstart --to my-model --dtype bf16
    """
    from danlu import stages
    from danlu.export import export as write

    folder = _run_folder(run)
    trained = stages.open_trained(folder, _note)
    path = write(trained, to or folder.export, dtype, replace)
    click.echo(f"wrote {path} ({dtype}, step {trained.step})")


@cli.group(name="recipe")
def recipe_group() -> None:
    """Look at recipes."""


@recipe_group.command(name="show")
@RECIPE
@OVERRIDES
@JSON
def recipe_show(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the resolved recipe and what differs from the defaults.

    \b
    Example:
      danlu recipe show recipes/quickstart.yaml train.steps=200
    """
    from danlu import recipe as recipes

    settings = _load(recipe, overrides)
    differences = recipes.differences(settings)
    if as_json:
        changed = [{"field": field, "value": value, "default": default} for field, value, default in differences]
        _print_json({"recipe": settings.model_dump(mode="json"), "differences": changed})
        return
    click.echo(recipes.dump(settings), nl=False)
    click.echo("\n# differs from the defaults:")
    for field, value, default in differences:
        click.echo(f"#   {field}: {json.dumps(value, ensure_ascii=False)} (default {json.dumps(default, ensure_ascii=False)})")


@recipe_group.command(name="schema")
def recipe_schema() -> None:
    """Print the JSON Schema of a recipe, by which editors complete and check it.

    \b
    Example:
      danlu recipe schema > recipe.schema.json
    """
    from danlu import recipe as recipes

    _print_json(recipes.json_schema())


@cli.group(name="model")
def model_group() -> None:
    """Look at models without training them."""


@model_group.command(name="show")
@click.argument("model", metavar="PRESET|RECIPE|FOLDER")
@click.option("--sequence-length", type=click.IntRange(1), default=2048, show_default=True, help="Tokens, for the attention FLOPs.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Of the training.")
@JSON
def model_show(model: str, sequence_length: int, precision: Any, as_json: bool) -> None:
    """Parameters, FLOPs a token, and bytes of weights, gradients and optimizer.

    MODEL is a preset (see `danlu model list`), a recipe, or a folder with a Hugging Face config.json.

    \b
    Examples:
      danlu model show llama-3.1-8b
      danlu model show recipes/quickstart.yaml --json
    """
    from danlu.model.describe import describe
    from danlu.recipe.resolve import named_shape

    rows = describe(named_shape(model), sequence_length=sequence_length, precision=precision)
    if as_json:
        _print_json([{"section": row.section, "label": row.label, "value": row.value} for row in rows])
        return
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            click.echo(section)
        click.echo(f"  {row.label:<44} {row.text:>14}  {row.value:,.0f}")


@model_group.command(name="list")
def model_list() -> None:
    """The presets, smallest first.

    \b
    Example:
      danlu model list
    """
    from danlu.model.describe import preset_rows

    for name, parameters, shape in preset_rows():
        click.echo(f"{name:<20} {parameters:>8}  {shape.layers} layers, hidden {shape.hidden_size}, vocabulary {shape.vocab_size:,}")


def _load(recipe: Path, overrides: tuple[str, ...]) -> Recipe:
    from danlu import recipe as recipes
    from danlu.run_folder import RunFolder

    return recipes.load(RunFolder.open(recipe).recipe_file if recipe.is_dir() else recipe, overrides)


def _open(recipe: Path, overrides: tuple[str, ...], root: Path) -> tuple[Recipe, RunFolder]:
    from danlu.run_folder import RunFolder

    settings = _load(recipe, overrides)
    return settings, RunFolder.create(settings, recipe if recipe.is_dir() else root / settings.name)


def _run_folder(path: Path) -> RunFolder:
    from danlu.run_folder import RunFolder

    return RunFolder.open(path)


def _note(line: str) -> None:
    click.echo(line, err=True)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def main() -> None:
    """Entry point: one line on stderr and an exit code for what a person can mend."""
    try:
        sys.exit(cli.main(prog_name="danlu", standalone_mode=False))
    except DanluError as error:
        click.echo(f"danlu: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("danlu: stopped at once; what was saved before is intact", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
