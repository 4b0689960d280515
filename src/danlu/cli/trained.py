"""Verbs that use what a run has trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.common import JSON, OVERRIDES, RUN, note, print_json, run_folder
from danlu.errors import DanluError, UserError
from danlu.plural import many

if TYPE_CHECKING:
    from danlu.run_folder import RunFolder

LAYOUT = click.option("--layout", is_flag=True, help="In the run's own layout; parallel.<field>=<value> gives another.")


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@OVERRIDES
@LAYOUT
@click.option("--file", type=click.Path(path_type=Path), help="A text, JSON or Parquet file to evaluate on instead.")
@click.option("--text", default="text", show_default=True, help="Field of --file that holds the text, in JSON and Parquet.")
@click.option("--tasks", multiple=True, type=click.Path(path_type=Path), help="A task file of lm-eval, or a folder of them.")
@click.option("--limit", type=click.IntRange(1), help="Only the first samples of every task.")
@JSON
def evaluate(
    run: Path,
    overrides: tuple[str, ...],
    layout: bool,
    file: Path | None,
    text: str,
    tasks: tuple[Path, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """Measure loss, perplexity and bits per byte, or tasks.

    On the validation split, or on a file. Bits per byte compare models with different tokenizers.
    --tasks runs task files of EleutherAI's lm-eval. A model in a folder in the Hugging Face layout, quantized ones included, is
    computed as `danlu serve` does.

    \b
    Examples:
      danlu evaluate runs/quickstart
      danlu evaluate runs/quickstart --file README.md
      danlu evaluate runs/quickstart parallel.tensor=2
      danlu evaluate my-model --file README.md
      danlu evaluate my-model --tasks tasks/choices.yaml
    """
    if tasks:
        if overrides or layout or file is not None:
            raise UserError("--tasks runs in one process, by the task's own data; leave overrides, --layout and --file out")
        _print_tasks(run, tasks, limit, as_json)
        return
    if limit is not None:
        raise UserError("--limit is of the samples of --tasks; name some, or leave it out")
    if (run / "config.json").is_file():
        _no_run(run, overrides, layout)
        if file is None:
            raise UserError(f"{run} has no text that was held out; give one with --file")
        _tell_evaluation(_evaluated_folder(run, file, text), as_json)
        return
    from danlu import engines, stages

    folder = run_folder(run)
    settings = stages.inference_recipe(folder, overrides, layout)
    if engines.again(settings):
        return
    trained = stages.open_trained(folder, note, settings)
    result = stages.evaluate(trained) if file is None else stages.evaluate_file(trained, file, text, note)
    _tell_evaluation(result, as_json)
    if file is None and trained.engine.rank == 0:
        try:
            stages.keep_evaluation(folder, result)
        except DanluError as error:  # someone else's run, or an archive: the figures are what was asked for
            note(f"danlu: the result is not kept: {error}")
    trained.engine.close()


def _no_run(folder: Path, overrides: tuple[str, ...], layout: bool) -> None:
    if overrides or layout:
        raise UserError(f"{folder} is no run: it has no recipe to override and no layout")


def _evaluated_folder(folder: Path, file: Path, text: str) -> dict[str, Any]:
    from danlu import serving
    from danlu.compress.perplexity import WINDOW
    from danlu.serve.load import load

    opened = serving.open_model(folder, note)
    return serving.evaluate(opened, load(opened.shape, opened.weights, opened.scheme, WINDOW, "cpu"), file, text, note)


def _tell_evaluation(result: dict[str, Any], as_json: bool) -> None:
    from danlu import stages

    if as_json:
        print_json(result)
        return
    counts = f"{many(result['documents'], 'document')}, {result['tokens']:,} tokens, {result['bytes']:,} bytes"
    click.echo(f"{result['source']}: {counts}")
    click.echo(stages.told(result))


def _print_tasks(path: Path, tasks: tuple[Path, ...], limit: int | None, as_json: bool) -> None:
    from danlu import harness

    found = harness.evaluate(path, tasks, limit, note)
    if as_json:
        print_json(found)
        return
    for name, figures in found.items():
        told = ", ".join(f"{metric} {value:.4f}" for metric, value in figures.items() if metric != "samples")
        click.echo(f"{name}: {many(figures['samples'], 'sample')}, {told}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@OVERRIDES
@LAYOUT
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; may be repeated. Default: the recipe's prompts.")
@click.option("--max-tokens", type=click.IntRange(1), help="New tokens. Default: the recipe's.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy. Default: the recipe's.")
@click.option("--top-k", type=click.IntRange(0), help="Only the k most likely tokens; 0: all. Default: the recipe's.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Only the most likely mass. Default: the recipe's.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the sampling. Default: the recipe's.")
@JSON
def generate(
    run: Path,
    overrides: tuple[str, ...],
    layout: bool,
    prompts: tuple[str, ...],
    max_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Continue prompts with the run's newest checkpoint.

    Or with a model in a folder in the Hugging Face layout, 8-bit weights included; a recipe's defaults hold for it.

    \b
    Examples:
      danlu generate runs/quickstart --prompt "def main():"
      danlu generate my-model --prompt "import os" --temperature 0 --max-tokens 20
      danlu generate runs/quickstart parallel.pipeline=2
    """
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    asked = {name: it for name, it in given.items() if it is not None}
    if (run / "config.json").is_file():
        _no_run(run, overrides, layout)
        _print(_continued_by_folder(run, prompts, asked), as_json)
        return
    from danlu import engines, stages

    folder = run_folder(run)
    settings = stages.sampling_settings(folder.load_recipe(), asked)
    opened = stages.inference_recipe(folder, overrides, layout)
    if engines.again(opened):
        return
    trained = stages.open_trained(folder, note, opened)
    every = enumerate(prompts or settings.prompts)
    continued = ((prompt, stages.generate(trained, prompt, settings, number)) for number, prompt in every)
    _print(continued, as_json, step=trained.step)
    trained.engine.close()


def _continued_by_folder(folder: Path, prompts: tuple[str, ...], asked: dict[str, Any]) -> Iterator[tuple[str, Iterator[str]]]:
    from danlu import serving
    from danlu.recipe.watch_sections import GenerateSection
    from danlu.serve.load import load

    if not prompts:
        raise UserError("a folder has no recipe with prompts; give --prompt")
    settings = GenerateSection(**asked)
    opened = serving.open_model(folder, note)
    room = max(len(opened.model.prompt(prompt)) for prompt in prompts) + settings.max_tokens
    executor = load(opened.shape, opened.weights, opened.scheme, room, "cpu")
    for number, prompt in enumerate(prompts):
        yield prompt, serving.generate(opened, executor, prompt, settings, number)


def _print(continued: Iterable[tuple[str, Iterator[str]]], as_json: bool, **facts: Any) -> None:
    made = []
    for prompt, pieces in continued:
        if as_json:
            made.append({"prompt": prompt, "text": "".join(pieces), **facts})
            continue
        click.echo(prompt, nl=False)
        for piece in pieces:
            click.echo(piece, nl=False)
        click.echo()
    if as_json:
        print_json(made)


@click.command()
@RUN
@click.option("--to", type=click.Path(path_type=Path), help="Target folder or file. Default: export/ in the run folder.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["hugging-face", "gguf-f16", "gguf-q8_0", "peft"]),
    default="hugging-face",
    show_default=True,
    help="gguf: one file, for llama.cpp; peft: the adapter alone.",
)
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Type of the weights."
)
@click.option("--replace", is_flag=True, help="Overwrite an export made before.")
def export(run: Path, to: Path | None, form: str, dtype: str, replace: bool) -> None:
    """Write the model for other programs.

    That is config.json, safetensors and the tokenizer, for transformers, vLLM and others.

    \b
    Examples:
      danlu export runs/quickstart
      danlu export runs/quickstart --to my-model --dtype bf16
      danlu export runs/sft --to model.gguf --format gguf-q8_0
    """
    from danlu import export as exports
    from danlu import stages

    folder = run_folder(run)
    if form != "hugging-face":
        click.echo(f"wrote {_otherwise(folder, to, form, dtype, replace)} ({form})")
        return
    place = to or folder.export
    exports.check(place, replace)  # before the model is loaded
    trained = stages.open_trained(folder, note)
    click.echo(f"wrote {exports.export(trained, place, dtype, replace)} ({dtype}, step {trained.step})")


def _otherwise(folder: RunFolder, to: Path | None, form: str, dtype: str, replace: bool) -> Path:
    from danlu import export as exports
    from danlu import stages
    from danlu.pretrained import export as others

    if to is None:
        raise UserError(f"--format {form}: name the {'folder' if form == 'peft' else 'file'} to write with --to")
    if dtype != "fp32":
        raise UserError(f"--dtype {dtype} is for the Hugging Face layout; --format {form} has types of its own, leave it out")
    if form == "peft":
        exports.check(to, replace, others.ADAPTER)
        return others.export_adapter(stages.open_trained(folder, note), to, replace)
    others.check_file(to, replace)
    return others.export_gguf(stages.open_trained(folder, note), to, form.removeprefix("gguf-"), replace)
