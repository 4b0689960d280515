"""The stages of a run. Each reads the recipe or the run folder and writes into the run folder."""

from __future__ import annotations

import math
import platform

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from danlu import __version__, engines
from danlu.data import tokenizer as tokenizers
from danlu.data.batches import evaluation_batches
from danlu.data.prepare import prepare as prepare_data
from danlu.data.prepared import Prepared
from danlu.data.stream import TokenStream
from danlu.data.text_file import text_stream
from danlu.data.tokenizer import Tokenizer
from danlu.engines.base import Engine, Sampling
from danlu.errors import UserError
from danlu.files import locked
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, resolve_shape
from danlu.run_folder import RunFolder
from danlu.train import checkpoint
from danlu.train.loop import train as train_loop
from danlu.watch import probes
from danlu.watch.report import write_report

EVALUATION_TOKENS = 8192
"""Tokens of a batch outside training, where no gradient needs memory."""


class Trained(NamedTuple):
    """A run's model at its newest good checkpoint."""

    engine: Engine
    shape: ModelShape
    tokenizer: Tokenizer
    prepared: Prepared
    recipe: Recipe
    step: int


@contextmanager
def writing(run: RunFolder) -> Iterator[None]:
    """Hold the run folder for one process. UserError: another one trains in it."""
    with locked(run.path, "another danlu process works on this run; wait for it, or give this one another name"):
        yield


def prepare(recipe: Recipe, run: RunFolder, report: Callable[[str], None]) -> Prepared:
    """Raw text to shards in the run's data folder; reused when it is there."""
    return prepare_data(recipe, run.data, report)


def train(recipe: Recipe, run: RunFolder, prepared: Prepared, stream: TextIO) -> dict[str, Any]:
    """Train, or go on training, and write summary.json and report.html whatever way it ends."""
    start = time.monotonic()
    shape = resolve_shape(recipe, prepared.vocab_size)
    engine = engines.create(recipe, shape)
    run.write("environment.json", {"danlu": __version__, "python": platform.python_version(), **engine.versions(), **probes.machine()})
    try:
        summary = train_loop(recipe, shape, engine, prepared, run.path, stream)
        run.write("summary.json", {**summary, "seconds": time.monotonic() - start})
        return summary
    finally:
        write_report(run.path)


def open_trained(run: RunFolder, report: Callable[[str], None]) -> Trained:
    """Load the newest good checkpoint of a run. UserError: there is none."""
    recipe = run.load_recipe()
    prepared = Prepared.open(run.data)
    found = checkpoint.latest(run.checkpoints, report)
    if found is None:
        raise UserError(f"{run.path}: nothing is trained yet (no checkpoint); run: danlu train {run.path}")
    shape = resolve_shape(recipe, prepared.vocab_size)
    engine = engines.create(recipe, shape)
    engine.load_weights(found.path)
    return Trained(engine, shape, tokenizers.load(prepared.folder), prepared, recipe, found.step)


def evaluate(run: RunFolder, file: Path | None, text_field: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Loss, perplexity and bits per byte on the whole validation split, or on a file of any kind that `data.sources` takes."""
    trained = open_trained(run, report)
    if file is not None:
        with text_stream(file, trained.tokenizer, text=text_field, report=report) as stream:
            return {"source": str(file), **_measure(trained, stream)}
    if not trained.prepared.validation.tokens:
        raise UserError("data.validation_fraction is 0, so that nothing is held out; give a text with --file")
    result = {"source": "validation", **_measure(trained, trained.prepared.validation)}
    run.write("evaluation.json", result)
    write_report(run.path)
    return result


def _measure(trained: Trained, stream: TokenStream) -> dict[str, Any]:
    length = trained.recipe.data.sequence_length
    nats, tokens = 0.0, 0
    for batch in evaluation_batches(
        stream,
        sequence_length=length,
        batch=max(1, EVALUATION_TOKENS // length),
        document_mask=trained.recipe.data.document_mask,
    ):
        part, supervised = trained.engine.evaluate(batch)
        nats, tokens = nats + part, tokens + supervised
    if not tokens:
        raise UserError("the text has no token to predict; give a longer one")
    loss = nats / tokens
    return {
        "step": trained.step,
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": nats / math.log(2) / stream.text_bytes,
        "tokens": tokens,
        "bytes": stream.text_bytes,
        "documents": stream.documents,
    }


def generate(trained: Trained, prompt: str, sampling: Sampling) -> Iterator[str]:
    """The continuation of a prompt, piece by piece; no piece ends inside a character."""
    tokenizer = trained.tokenizer
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    tokens: list[int] = []
    shown = ""
    for token in trained.engine.generate(begin + tokenizer.encode(prompt), sampling, tokenizer.end_id):
        tokens.append(token)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # half a character: the rest comes with the next token
            yield text[len(shown) :]
            shown = text
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    if len(text) > len(shown):
        yield text[len(shown) :]


def samples(run: RunFolder, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """The recipe's prompts continued; written to samples.json."""
    trained = open_trained(run, report)
    settings = trained.recipe.generate
    made = []
    for number, prompt in enumerate(settings.prompts):
        sampling = Sampling(settings.max_tokens, settings.temperature, settings.top_k, settings.top_p, settings.seed + number)
        made.append({"prompt": prompt, "text": "".join(generate(trained, prompt, sampling)), "step": trained.step})
    run.write("samples.json", made)
    write_report(run.path)
    return made
