"""The command line: a verb parses, calls one function and prints. Rooms are imported inside the verbs: help is instant."""

from __future__ import annotations

import codecs
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu import __version__
from danlu.errors import EXIT_INTERRUPTED, EXIT_USAGE, DanluError, UserError

if TYPE_CHECKING:
    from danlu.recipe import Recipe
    from danlu.run_folder import RunFolder

RECIPE = click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE|RUN")
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
ROOT = click.option(
    "--runs", "root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of all runs."
)
RUN = click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class _Verbs(click.Group):
    """Lists its verbs in the order in which a person needs them, and shows its help when none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="danlu")
def cli() -> None:
    """danlu (丹炉): train a language model from raw text, evaluate, sample and export it.

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

    Run the same command again to go on with an interrupted run; what is there already is not done again.

    \b
    Examples:
      danlu run recipes/quickstart.yaml
      danlu run recipes/quickstart.yaml name=short train.steps=50
    """
    from danlu.pipeline import run_stages

    settings, folder = _open(recipe, overrides, root, trains=True)
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

    settings, folder = _open(recipe, overrides, root, trains=False)
    with stages.writing(folder):
        stages.prepare(settings, folder, click.echo)


@cli.command()
@RECIPE
@OVERRIDES
@ROOT
def train(recipe: Path, overrides: tuple[str, ...], root: Path) -> None:
    """Train, or go on from the newest good checkpoint.

    Data is prepared first if it is not there. Ctrl-C once finishes the step and saves; twice stops at once.

    \b
    Examples:
      danlu train recipes/quickstart.yaml
      danlu train runs/quickstart
      danlu train recipes/quickstart.yaml name=hot train.optimizer.learning_rate=1e-3
    """
    from danlu import stages

    settings, folder = _open(recipe, overrides, root, trains=True)
    with stages.writing(folder):
        prepared = stages.prepare(settings, folder, click.echo)
        if (summary := stages.finished(settings, folder, prepared, click.echo)) is not None:
            click.echo(f"already trained: {summary['steps']} of {settings.train.steps} steps")
        else:
            stages.train(settings, folder, prepared, sys.stdout)
    click.echo(f"report: {folder.path / 'report.html'}")


@cli.command(hidden=True)
@RUN
def worker(run: Path) -> None:
    """One rank of a layout, started by `danlu train`.

    \b
    Example:
      torchrun --nproc-per-node 4 -m danlu worker runs/quickstart
    """
    from danlu import stages

    stages.worker(_run_folder(run), sys.stdout)


@cli.command()
@RUN
@click.option("--file", type=click.Path(path_type=Path), help="A text, JSON or Parquet file to evaluate on instead.")
@click.option("--text", default="text", show_default=True, help="Field of --file that holds the text, in JSON and Parquet.")
@JSON
def evaluate(run: Path, file: Path | None, text: str, as_json: bool) -> None:
    """Measure loss, perplexity and bits per byte.

    On the validation split, or on a file. Bits per byte compare models with different tokenizers.

    \b
    Examples:
      danlu evaluate runs/quickstart
      danlu evaluate runs/quickstart --file README.md
    """
    from danlu import stages

    folder = _run_folder(run)
    trained = stages.open_trained(folder, _note)
    result = stages.evaluate(trained) if file is None else stages.evaluate_file(trained, file, text, _note)
    if as_json:
        _print_json(result)
    else:
        counts = f"{result['documents']:,} documents, {result['tokens']:,} tokens, {result['bytes']:,} bytes"
        click.echo(f"{result['source']}: {counts}")
        click.echo(
            f"loss {result['loss']:.4f} nats a token, perplexity {result['perplexity']:.2f}, "
            f"{result['bits_per_byte']:.4f} bits per byte"
        )
    if file is None:
        try:
            stages.keep_evaluation(folder, result)
        except DanluError as error:  # someone else's run, or an archive: the figures are what was asked for
            _note(f"danlu: the result is not kept: {error}")


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

    folder = _run_folder(run)
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings = stages.sampling_settings(folder.load_recipe(), {name: it for name, it in given.items() if it is not None})
    trained = stages.open_trained(folder, _note)
    made = []
    for number, prompt in enumerate(prompts or settings.prompts):
        pieces = stages.generate(trained, prompt, settings, number)
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
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Type of the weights."
)
@click.option("--replace", is_flag=True, help="Overwrite an export made before.")
def export(run: Path, to: Path | None, dtype: str, replace: bool) -> None:
    """Write the model in the Hugging Face layout.

    That is config.json, safetensors and the tokenizer, for transformers, vLLM and others.

    \b
    Examples:
      danlu export runs/quickstart
      danlu export runs/quickstart --to my-model --dtype bf16
    """
    from danlu import export as exports
    from danlu import stages

    folder = _run_folder(run)
    place = to or folder.export
    exports.check(place, replace)  # before the model is loaded
    trained = stages.open_trained(folder, _note)
    click.echo(f"wrote {exports.export(trained, place, dtype, replace)} ({dtype}, step {trained.step})")


@cli.group(name="recipe", cls=_Verbs)
def recipe_group() -> None:
    """Look at recipes.

    \b
    Example:
      danlu recipe show recipes/quickstart.yaml
    """


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
        shown = {"recipe": settings.model_dump(mode="json"), "differences": changed, "ignored": recipes.ignored(settings)}
        _print_json(shown)
        return
    click.echo(recipes.dump(settings), nl=False)
    click.echo("\n# differs from the defaults:")
    for field, value, default in differences:
        click.echo(f"#   {field}: {json.dumps(value, ensure_ascii=False)} (default {json.dumps(default, ensure_ascii=False)})")
    for line in recipes.ignored(settings):
        click.echo(f"# ignored: {line}")


@recipe_group.command(name="schema")
def recipe_schema() -> None:
    """Print the JSON Schema of a recipe, for editors.

    With it an editor completes and checks a recipe as you type.

    \b
    Example:
      danlu recipe schema > recipe.schema.json
    """
    from danlu import recipe as recipes

    _print_json(recipes.json_schema())


@cli.group(name="model", cls=_Verbs)
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
        _print_json([{"section": row.section, "label": row.label, "value": row.value} for row in rows])
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
        _print_json([{"preset": name, "parameters": parameter_count(shape), **shape.model_dump()} for name, _, shape in rows])
        return
    for name, parameters, shape in rows:
        click.echo(
            f"{name:<20} {parameters:>8}  {shape.layers} layers, hidden {shape.hidden_size}, vocabulary {shape.vocab_size:,}"
        )


def _load(recipe: Path, overrides: tuple[str, ...]) -> Recipe:
    from danlu import recipe as recipes
    from danlu.run_folder import RunFolder

    return recipes.load(RunFolder.open(recipe).recipe_file if recipe.is_dir() else recipe, overrides)


def _open(recipe: Path, overrides: tuple[str, ...], root: Path, trains: bool) -> tuple[Recipe, RunFolder]:
    """The recipe and its run folder: the given one, or, under a new name, another one below the folder of all runs.

    With trains, an engine that cannot run here is an error before any work is done.
    """
    from danlu import engines
    from danlu.run_folder import RunFolder

    settings = _load(recipe, overrides)
    if root.exists() and not root.is_dir():
        raise UserError(f"{root}: is not a folder; name the folder of all runs with --runs")
    if trains:
        engines.check(settings)
    same = recipe.is_dir() and _load(recipe, ()).name == settings.name
    return settings, RunFolder.create(settings, recipe if same else root / settings.name)


def _run_folder(path: Path) -> RunFolder:
    from danlu.run_folder import RunFolder

    return RunFolder.open(path)


def _note(line: str) -> None:
    click.echo(line, err=True)


def _print_json(value: Any) -> None:
    # Where the terminal cannot show a character, its escape is still JSON, and a question mark would be another text.
    click.echo(json.dumps(value, indent=2, ensure_ascii=codecs.lookup(sys.stdout.encoding).name != "utf-8"))


def main() -> None:
    """Entry point: one line on stderr and an exit code for what a person can mend."""
    _prepare_streams()
    try:
        code = cli.main(prog_name="danlu", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        code = _fail(_usage(error), EXIT_USAGE)
    except DanluError as error:
        code = _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _fail("stopped at once; what was saved before is intact", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Who read the output is gone. What is still buffered goes nowhere, so that the interpreter does not stumble at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        from danlu.files import why

        # Stages say for themselves what fails in the middle; a place without permission is found when it is opened.
        code = EXIT_USAGE if isinstance(error, PermissionError) else 1
        _fail(": ".join(str(part) for part in (error.filename, why(error)) if part), code)
    sys.exit(code)


def _prepare_streams() -> None:
    """Print any text on any terminal: UTF-8 where Python fell back to ASCII, and a question mark for what an encoding lacks."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by the shell, as with `>&-`
            stream = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end
            setattr(sys, name, stream)
        ascii_only = codecs.lookup(stream.encoding).name == "ascii"
        stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="replace")


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    help_of = context.command_path if context is not None else "danlu"
    return f"{' '.join(error.format_message().split())} (see {help_of} --help)"


def _fail(line: str, code: int) -> int:
    click.echo(f"danlu: {line}", err=True)
    return code
