"""The stages of a run. Each reads the recipe or the run folder and writes into the run folder."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pydantic import ValidationError

from danlu import __version__, auto, engines, live_page, teaching
from danlu.data import tokenizer as tokenizers
from danlu.data.batches import evaluation_batches
from danlu.data.prepare import prepare as prepare_data
from danlu.data.prepared import Prepared
from danlu.data.stream import TokenStream
from danlu.data.text_file import text_stream
from danlu.data.tokenizer import Tokenizer
from danlu.engines.base import Engine
from danlu.environment import Nodes, place
from danlu.errors import UserError
from danlu.files import locked, sha256
from danlu.launch import ranks
from danlu.launch.start import start
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe, for_inference, resolve_shape
from danlu.recipe.explain import from_validation
from danlu.recipe.fields import dotted
from danlu.recipe.watch_sections import GenerateSection
from danlu.reporting import write_report
from danlu.run_folder import BUSY, RunFolder
from danlu.train import checkpoint
from danlu.train.checkpoint import Checkpoint
from danlu.train.continuation import continuation
from danlu.train.loop import train as train_loop
from danlu.train.room import check_room
from danlu.watch import probes

EVALUATION_TOKENS = 8192
"""Tokens of a batch outside training, where no gradient needs memory."""
SHAPE = "shape.json"

LIBRARIES = ("numpy", "tokenizers", "pyarrow", "safetensors")
"""Beside the engine's own: what a run's figures, tokens and files come from."""

Report = Callable[[str], None]


class Trained(NamedTuple):
    """A run's model at its newest good checkpoint."""

    engine: Engine
    shape: ModelShape
    tokenizer: Tokenizer
    prepared: Prepared
    recipe: Recipe
    step: int
    identity: str
    """Names the checkpoint and its content; what was made from it can be told from what was not."""


@contextmanager
def writing(run: RunFolder) -> Iterator[None]:
    """Hold the run folder for one process. UserError: another one trains in it."""
    with locked(run.path, BUSY):
        yield


def prepare(recipe: Recipe, run: RunFolder, report: Report) -> Prepared:
    """Raw text to shards in the run's data folder; reused when it is there."""
    return prepare_data(recipe, run.data, report)


def train(recipe: Recipe, run: RunFolder, prepared: Prepared, stream: TextIO, nodes: Nodes | None = None) -> dict[str, Any]:
    """Train, or go on training, and write summary.json and report.html whatever way it ends. Returns the summary.

    A layout of several processes is started here, on this machine's part of the ``nodes``, unless this is one of them.
    """
    with live_page.asked_for(recipe, run, stream) if place() is None else nullcontext():
        return _train(recipe, run, prepared, stream, nodes)


def _train(recipe: Recipe, run: RunFolder, prepared: Prepared, stream: TextIO, nodes: Nodes | None) -> dict[str, Any]:
    shape = shape_of(recipe, run, prepared)
    if place() is None:
        check_room(recipe, shape, run.path, (nodes or Nodes()).count)
        teaching.ask(recipe, shape, prepared, lambda line: print(line, file=stream, flush=True))
    if recipe.parallel.processes > 1 and place() is None:
        start(recipe, run.path, nodes or Nodes())
        summary: dict[str, Any] = run.read("summary.json")
        return summary
    began = time.monotonic()
    engine = engines.create(recipe, shape, run.path)
    engine.self_test()
    if engine.rank > 0:
        summary = train_loop(recipe, shape, engine, prepared, run.path, stream)
        engine.close()
        return summary
    run.write(SHAPE, shape.model_dump(mode="json"))
    if (predicted := auto.prediction(recipe, shape)) is not None:
        run.write("plan.json", predicted)
    versions = {"danlu": __version__, "python": platform.python_version(), **engine.versions()}
    run.write("environment.json", versions | _libraries() | probes.machine())
    try:
        summary = train_loop(recipe, shape, engine, prepared, run.path, stream)
        engine.close()
    except BaseException:
        # What ended the run is what a person must hear of, not a report that a full disk cannot take.
        with suppress(UserError):
            write_report(run.path)
        raise
    summary["seconds"] = time.monotonic() - began
    run.write("summary.json", summary)
    write_report(run.path)
    return summary


def worker(run: RunFolder, stream: TextIO, watches: bool = False) -> None:
    """One rank of a layout. With ``watches``, since no launcher of danlu's does, the first one looks after all."""
    with ranks.working(run.path) as rank:
        recipe = run.load_recipe()
        if recipe.automatic:
            raise UserError(f"{run.recipe_file}: the layout is not planned yet; start it with: danlu train {run.path}")
        prepared = Prepared.open(run.data)
        ranks.begin(rank, recipe, prepared.fingerprint, run.path, watches)
        train(recipe, run, prepared, stream)


def shape_of(recipe: Recipe, run: RunFolder, prepared: Prepared) -> ModelShape:
    """The shape that the run's checkpoints have; before the first one, what the recipe says.

    It is kept, since the folder that model.hugging_face named may be gone by the time the run is opened again.
    """
    if not run.checkpoints.is_dir() or (kept := run.read(SHAPE)) is None:
        return resolve_shape(recipe, prepared.vocab_size)
    try:
        return ModelShape.model_validate(kept)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = ": ".join(part for part in (dotted(first["loc"]), first["msg"]) if part)
        raise UserError(f"{run.path / SHAPE}: damaged ({wrong}); delete it to go by the recipe") from None


def _libraries() -> dict[str, str]:
    """The versions of those that are installed, without importing them."""
    found = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def finished(recipe: Recipe, run: RunFolder, prepared: Prepared, report: Report) -> dict[str, Any] | None:
    """The summary of a run that is trained to its last step on this data; None while there is something left to do.

    Of damaged checkpoints it says nothing in the second case: the training that follows looks at them anew, and tells.
    """
    damaged: list[str] = []
    summary: dict[str, Any] | None = None
    try:
        found = checkpoint.latest(run.checkpoints, damaged.append)
    except UserError:
        for line in damaged:
            report(line)
        raise
    if found is not None and found.step >= recipe.train.steps and found.state.get("data") == prepared.fingerprint:
        summary = run.read("summary.json")
    if found is None or not summary or summary.get("steps") != found.step:
        return None
    for line in damaged:
        report(line)
    return summary


def identity(found: Checkpoint) -> str:
    """Such as ``step-00000300 1f3a9c0e5b7d2468``: the manifest, and with it every file of the checkpoint."""
    return f"{found.path.name} {sha256(found.path / checkpoint.MANIFEST)[:16]}"


def newest(run: RunFolder, report: Report) -> Checkpoint:
    """The newest good checkpoint of a run. UserError: there is none."""
    found = checkpoint.latest(run.checkpoints, report)
    if found is None:
        raise UserError(f"{run.path}: nothing is trained yet (no checkpoint); run: danlu train {run.path}")
    return found


def inference_recipe(run: RunFolder, overrides: Sequence[str], own_layout: bool) -> Recipe:
    """By which a trained run is opened: in one process, in its own layout, or in the one that is given."""
    recipe = run.load_recipe()
    return for_inference(recipe, overrides, own_layout, max(1, EVALUATION_TOKENS // recipe.data.sequence_length))


def open_trained(run: RunFolder, report: Report, recipe: Recipe | None = None) -> Trained:
    """Load the newest good checkpoint of a run, in one process unless the recipe says otherwise.

    UserError: there is none, or the run's data is not what it was trained on.
    """
    recipe = recipe or run.load_recipe().alone
    found = newest(run, report)
    prepared = Prepared.open(run.data)
    if found.state.get("data") != prepared.fingerprint:
        raise UserError(
            f"{found.path} was trained on other data, or with another tokenizer, than {run.data} holds; bring that data back"
        )
    shape = shape_of(recipe, run, prepared)
    engine = engines.create(recipe, shape)
    engine.load_weights(found.path)
    return Trained(engine, shape, tokenizers.load(prepared.folder), prepared, recipe, found.step, identity(found))


def evaluate(trained: Trained) -> dict[str, Any]:
    """Loss, perplexity and bits per byte on the whole validation split; nothing is written."""
    if not trained.prepared.validation.tokens:
        raise UserError("data.validation_fraction is 0, so that nothing is held out; give a text with --file")
    measure = _measure if trained.recipe.train.of_tokens else _preferences
    return {"source": "validation", **measure(trained, trained.prepared.validation)}


def told(result: dict[str, Any]) -> str:
    """An evaluation on one line."""
    if "pairs" in result:
        return f"loss {result['loss']:.4f} a pair, margin {result['margin']:.4f}, accuracy {result['accuracy']:.1%}"
    return (
        f"loss {result['loss']:.4f} nats a token, perplexity {result['perplexity']:.2f}, "
        f"{result['bits_per_byte']:.4f} bits per byte"
    )


def keep_evaluation(run: RunFolder, result: dict[str, Any]) -> None:
    """Write it to evaluation.json and the report. DanluError: that cannot be written."""
    run.write("evaluation.json", result)
    write_report(run.path)


def evaluate_file(trained: Trained, file: Path, text_field: str, report: Report) -> dict[str, Any]:
    """The same on a file, folder or glob of any kind that `data.sources` takes; a file of another kind is plain text."""
    with text_stream(file, trained.tokenizer, text=text_field, report=report) as stream:
        return {"source": str(file), **_measure(trained, stream)}


def _batches(trained: Trained, stream: TokenStream) -> Iterator[dict[str, Any]]:
    length = trained.recipe.data.sequence_length
    layout = trained.recipe.parallel.processes > 1
    return evaluation_batches(
        stream,
        sequence_length=length,
        batch=trained.recipe.train.global_batch if layout else max(1, EVALUATION_TOKENS // length),
        document_mask=trained.recipe.data.document_mask,
    )


def _preferences(trained: Trained, stream: TokenStream) -> dict[str, Any]:
    total, pairs = 0.0, 0
    sums: dict[str, float] = {}
    for batch in _batches(trained, stream):
        loss, count, measured = trained.engine.judge(batch)
        total, pairs = total + loss, pairs + count
        sums = {name: sums.get(name, 0.0) + value for name, value in measured.items()}
    means = {name: value / pairs for name, value in sums.items()}
    counts = {"pairs": pairs, "tokens": stream.tokens, "bytes": stream.text_bytes, "documents": stream.documents}
    return {"step": trained.step, "checkpoint": trained.identity, "loss": total / pairs, **means, **counts}


def _measure(trained: Trained, stream: TokenStream) -> dict[str, Any]:
    nats, tokens = 0.0, 0
    for batch in _batches(trained, stream):
        part, supervised = trained.engine.evaluate(batch)
        nats, tokens = nats + part, tokens + supervised
    if not tokens:
        raise UserError("the text has no token to predict; give a longer one")
    loss = nats / tokens
    return {
        "step": trained.step,
        "checkpoint": trained.identity,
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": nats / math.log(2) / stream.text_bytes,
        "tokens": tokens,
        "bytes": stream.text_bytes,
        "documents": stream.documents,
    }


def sampling_settings(recipe: Recipe, given: Mapping[str, Any]) -> GenerateSection:
    """The recipe's settings with those given over them. UserError: one is out of range."""
    try:
        return GenerateSection.model_validate(recipe.generate.model_dump() | dict(given))
    except ValidationError as error:
        first = from_validation(error, ("generate",))[0]
        raise UserError(f"{dotted(first.path)}: {first.text}") from None


def generate(trained: Trained, prompt: str, settings: GenerateSection, number: int = 0) -> Iterator[str]:
    """See `danlu.train.continuation`."""
    return continuation(trained.engine, trained.tokenizer, trained.shape, prompt, settings, number)


def samples(trained: Trained, run: RunFolder) -> list[dict[str, Any]]:
    """The recipe's prompts continued; written to samples.json."""
    settings = trained.recipe.generate
    made = [
        {
            "prompt": prompt,
            "text": "".join(generate(trained, prompt, settings, number)),
            **_drawn(trained.identity, trained.step, settings),
        }
        for number, prompt in enumerate(settings.prompts)
    ]
    run.write("samples.json", made)
    write_report(run.path)
    return made


def _drawn(identity: str, step: int, settings: GenerateSection) -> dict[str, Any]:
    return {"step": step, "checkpoint": identity, **settings.model_dump(exclude={"prompts", "every"})}


def kept_evaluation(run: RunFolder, found: Checkpoint) -> dict[str, Any] | None:
    """The evaluation of this very checkpoint, if one was made."""
    result = run.read("evaluation.json")
    return result if isinstance(result, dict) and result.get("checkpoint") == identity(found) else None


def kept_samples(run: RunFolder, found: Checkpoint, settings: GenerateSection) -> list[dict[str, Any]] | None:
    """The samples of this very checkpoint, if they were drawn with these settings."""
    made = run.read("samples.json")
    if not isinstance(made, list) or not all(isinstance(sample, dict) for sample in made):
        return None
    drawn = _drawn(identity(found), found.step, settings)
    wanted = [
        {"prompt": prompt, "text": sample.get("text"), **drawn} for prompt, sample in zip(settings.prompts, made, strict=False)
    ]
    return made if made == wanted and len(made) == len(settings.prompts) else None
