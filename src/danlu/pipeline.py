"""``danlu run``: the stages that a recipe names, in order, and what came of them in plain words."""

from __future__ import annotations

import shlex
import time
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from danlu import stages
from danlu.data.prepared import Prepared, is_prepared
from danlu.export import export
from danlu.plural import many
from danlu.recipe import Recipe
from danlu.reporting import write_report
from danlu.run_folder import RunFolder
from danlu.train.checkpoint import Checkpoint
from danlu.watch.console import header
from danlu.watch.format import count, duration

PURPOSE = {
    "prepare": "turn the text into tokens",
    "train": "train the model",
    "evaluate": "measure it on text that was held out",
    "generate": "let it continue the recipe's prompts",
    "export": "write it in the Hugging Face layout",
}


def run_stages(recipe: Recipe, run: RunFolder, stream: TextIO) -> None:
    """Do every stage, say so, and write summary.json. A stage whose result is there already is not done again."""
    with stages.writing(run):
        _Pipeline(recipe, run, stream).run()


class _Pipeline:
    """One ``danlu run``. Data and model are opened once, by the first stage that needs them."""

    def __init__(self, recipe: Recipe, run: RunFolder, stream: TextIO) -> None:
        self.recipe, self.folder, self.stream = recipe, run, stream
        self.told: set[str] = set()

    def run(self) -> None:
        start = time.monotonic()
        told = []
        for number, stage in enumerate(self.recipe.stages, 1):
            self.say(f"[{number}/{len(self.recipe.stages)}] {stage}: {PURPOSE[stage]}")
            began = time.monotonic()
            reused = getattr(self, f"_{stage}")()
            told.append(f"{stage} (reused)" if reused else stage)
            self.say(f"    {'reused' if reused else 'done'} in {duration(time.monotonic() - began)}")
            self.say()
        summary = self.folder.read("summary.json")
        if "train" in told:
            summary["seconds"] = time.monotonic() - start
            self.folder.write("summary.json", summary)
            write_report(self.folder.path)
        self.say("What happened")
        header([("stages", ", ".join(told)), *_outcome(summary or {}), *self._report_row()], self.stream)
        self.say()
        self.say("Worth trying next")
        for command in next_commands(self.recipe, self.folder):
            self.say(f"  {command}")

    def say(self, line: str = "") -> None:
        print(line, file=self.stream, flush=True)

    def once(self, line: str) -> None:
        """Several stages look at the checkpoints, and each would name the same damaged one."""
        if line not in self.told:
            self.told.add(line)
            self.say(line)

    @cached_property
    def prepared(self) -> Prepared:
        return stages.prepare(self.recipe, self.folder, self.say)

    @cached_property
    def newest(self) -> Checkpoint:
        return stages.newest(self.folder, self.once)

    @cached_property
    def trained(self) -> stages.Trained:
        return stages.open_trained(self.folder, self.once)

    # Each stage says whether its result was there already.

    def _prepare(self) -> bool:
        reused = is_prepared(self.folder.data)
        _ = self.prepared
        return reused

    def _train(self) -> bool:
        summary = stages.finished(self.recipe, self.folder, self.prepared, self.once)
        if summary is not None:
            self.say(f"already trained: {summary['steps']} of {many(self.recipe.train.steps, 'step')}")
            return True
        stages.train(self.recipe, self.folder, self.prepared, self.stream)
        return False

    def _evaluate(self) -> bool:
        kept = stages.kept_evaluation(self.folder, self.newest)
        result = kept or stages.evaluate(self.trained)
        text = f"{result['tokens']:,} tokens of {many(result['documents'], 'document')}"
        self.say(f"validation: {stages.told(result)}, over {text}")
        if kept is None:
            stages.keep_evaluation(self.folder, result)
        return kept is not None

    def _generate(self) -> bool:
        kept = stages.kept_samples(self.folder, self.newest, self.recipe.generate)
        for sample in kept or stages.samples(self.trained, self.folder):
            self.say(f"--- prompt {sample['prompt']!r}, continued:")
            self.say(sample["prompt"] + sample["text"])
        return kept is not None

    def _export(self) -> bool:
        self.say(f"wrote {export(self.trained, self.folder.export, 'fp32', replace=True)}")
        return False

    def _report_row(self) -> list[tuple[str, str]]:
        report = self.folder.path / "report.html"
        return [("report", str(report))] if report.is_file() else []


def _outcome(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of a trained run; none for a run that is not trained yet."""
    if not summary:
        return []
    first, validation = summary["first_loss"], summary["last_validation_loss"]
    trained = f"trained {many(summary['steps'], 'step')} on {count(summary['tokens'])} tokens"
    rows = [("model", f"{count(summary['parameters'])} parameters, {trained}")]
    if first is not None:  # no step was finite
        rows.append(("loss", f"{first:.3f} at the first step, {summary['last_loss']:.3f} at the last"))
    if first is not None and validation is not None:
        rows.append(("validation", f"loss {validation:.3f} on text held out, {validation / first:.0%} of the first step's"))
    if summary["tokens_per_second"]:
        speed, whole = summary["tokens_per_second"], duration(summary["seconds"])
        rows.append(("speed", f"{speed:,.0f} tokens/s in the steps; {whole} for all stages"))
    return rows


def next_commands(recipe: Recipe, run: RunFolder) -> list[str]:
    """Three commands that work as they stand, where danlu was started."""
    folder = shlex.quote(str(run.path))
    if not run.checkpoints.is_dir():
        return [f"danlu train {folder}", f"danlu recipe show {folder}", "danlu model list"]
    own_text = Path("README.md")
    evaluate = f"danlu recipe show {folder}"
    if own_text.is_file() and own_text.stat().st_size:
        evaluate = f"danlu evaluate {folder} --file {own_text}"
    elif recipe.data.validation_fraction:
        evaluate = f"danlu evaluate {folder}"
    prompt = next((text for text in recipe.generate.prompts if text.strip() and text.isprintable()), "The ")
    return [
        f"danlu generate {folder} --prompt {shlex.quote(prompt)}",
        evaluate,
        f"danlu export {folder}" + (" --replace" if run.export.exists() else ""),
    ]
