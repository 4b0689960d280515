"""``danlu run``: the stages that a recipe names, in order, and what came of them in plain words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TextIO

from danlu import stages
from danlu.export import export
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.watch.console import header
from danlu.watch.format import count, duration
from danlu.watch.report import write_report


def run_stages(recipe: Recipe, run: RunFolder, stream: TextIO) -> None:
    """Do every stage, say so, and write summary.json. Each stage reuses what is already there."""

    def say(line: str = "") -> None:
        print(line, file=stream, flush=True)

    start = time.monotonic()
    with stages.writing(run):
        for number, stage in enumerate(recipe.stages, 1):
            say(f"[{number}/{len(recipe.stages)}] {stage}")
            began = time.monotonic()
            _STAGES[stage](recipe, run, say, stream)
            say(f"    {stage} done in {duration(time.monotonic() - began)}")
            say()
        if "train" in recipe.stages:
            seconds = time.monotonic() - start
            run.write("summary.json", {**run.read("summary.json"), "seconds": seconds})
            write_report(run.path)
            _tell(run, seconds, say, stream)


def _prepare(recipe: Recipe, run: RunFolder, say: Callable[[str], None], _stream: TextIO) -> None:
    stages.prepare(recipe, run, say)


def _train(recipe: Recipe, run: RunFolder, say: Callable[[str], None], stream: TextIO) -> None:
    stages.train(recipe, run, stages.prepare(recipe, run, say), stream)


def _evaluate(_recipe: Recipe, run: RunFolder, say: Callable[[str], None], _stream: TextIO) -> None:
    result = stages.evaluate(run, None, "text", say)
    say(
        f"validation: loss {result['loss']:.4f}, perplexity {result['perplexity']:.2f}, {result['bits_per_byte']:.4f} bits per byte, "
        f"over {result['tokens']:,} tokens of {result['documents']:,} documents"
    )


def _generate(_recipe: Recipe, run: RunFolder, say: Callable[[str], None], _stream: TextIO) -> None:
    for sample in stages.samples(run, say):
        say(f"--- prompt {sample['prompt']!r}, continued:")
        say(sample["prompt"] + sample["text"])


def _export(_recipe: Recipe, run: RunFolder, say: Callable[[str], None], _stream: TextIO) -> None:
    trained = stages.open_trained(run, say)
    say(f"wrote {export(trained, run.export, 'fp32', replace=True)}")


_STAGES: dict[str, Callable[[Recipe, RunFolder, Callable[[str], None], TextIO], None]] = {
    "prepare": _prepare,
    "train": _train,
    "evaluate": _evaluate,
    "generate": _generate,
    "export": _export,
}


def _tell(run: RunFolder, seconds: float, say: Callable[..., None], stream: TextIO) -> None:
    """What happened, and three commands worth trying next."""
    summary: dict[str, Any] = run.read("summary.json")
    first, validation = summary["first_loss"], summary["last_validation_loss"]
    rows = [
        ("model", f"{count(summary['parameters'])} parameters, trained {summary['steps']} steps on {count(summary['tokens'])} tokens"),
        ("loss", f"{first:.3f} at the first step, {summary['last_loss']:.3f} at the last"),
    ]
    if validation is not None:
        rows.append(("validation", f"loss {validation:.3f} on text it has not seen, {validation / first:.0%} of the first step's"))
    if summary["tokens_per_second"]:
        rows.append(("speed", f"{summary['tokens_per_second']:,.0f} tokens/s in the steps; {duration(seconds)} for all stages"))
    rows.append(("report", str(run.path / "report.html")))
    say("What happened")
    header(rows, stream)
    say()
    say("Worth trying next")
    say(f"  danlu generate {run.path} --prompt 'def '")
    say(f"  danlu evaluate {run.path} --file README.md")
    say(f"  danlu export {run.path} --to my-model")
