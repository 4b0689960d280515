"""A run, an export or another Hugging Face folder as a model that answers: what `danlu serve` opens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danlu import stages
from danlu.compress.perplexity import likelihood
from danlu.compress.plan import Scheme
from danlu.compress.stored import without_section
from danlu.data import tokenizer as tokenizers
from danlu.data.chat import template as templates
from danlu.data.prepared import Prepared
from danlu.data.text_file import text_stream
from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.model.families import from_hugging_face, to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe.watch_sections import GenerateSection
from danlu.run_folder import RECIPE, RunFolder
from danlu.serve.engine import Engine
from danlu.serve.executor import Executor
from danlu.serve.model import Model
from danlu.serve.sampling import Sampling

Report = Callable[[str], None]


class Opened(NamedTuple):
    """Where a model's weights are, and what is known of it without them."""

    model: Model
    shape: ModelShape
    weights: Path
    """A folder of safetensors files."""
    config: dict[str, Any]
    """The config.json of the model without its quantization."""
    scheme: Scheme
    """How the weights are stored, and computed."""


def open_model(path: Path, report: Report, name: str | None = None) -> Opened:
    """The newest good checkpoint of a run, or the model in a folder in the Hugging Face layout.

    UserError: it is neither, is damaged, or is of a family that danlu does not have.
    """
    if (path / RECIPE).is_file():
        run = RunFolder.open(path)
        if run.load_recipe().train.lora is not None:
            raise UserError(f"{path} has its adapters apart; merge them first, and name the folder: danlu export {path}")
        found = stages.newest(run, report)
        prepared = Prepared.open(run.data)
        shape = stages.shape_of(run.load_recipe(), run, prepared)
        tokenizer = tokenizers.load(prepared.folder)
        made = to_hugging_face(shape, bos_token_id=tokenizer.begin_id, eos_token_id=tokenizer.end_id)
        return Opened(_model(name or path.resolve().name, tokenizer, made, prepared.folder), shape, found.path, made, "plain")
    if not path.is_dir():
        raise UserError(f"{path}: there is no such folder; give a run or a folder in the Hugging Face layout")
    if (config := _json(path / "config.json")) is None:
        raise UserError(f"{path}: neither a run (no {RECIPE}) nor in the Hugging Face layout (no config.json)")
    generation = _json(path / "generation_config.json") or {}
    tokenizer = tokenizers.load(path)
    plain, scheme = without_section(config)
    model = _model(name or path.resolve().name, tokenizer, {**plain, **generation}, path)
    return Opened(model, from_hugging_face(plain), path, plain, scheme)


def generate(opened: Opened, executor: Executor, prompt: str, settings: GenerateSection, number: int = 0) -> Iterator[str]:
    """The continuation of a prompt, piece by piece, as `stages.generate` gives a run's. UserError: no text, or too long."""
    seed = (settings.seed + number) % 2**63
    sampling = Sampling(settings.max_tokens, settings.temperature, settings.top_k, settings.top_p, seed=seed)
    engine = Engine(executor)
    engine.add(opened.model.sequence(opened.model.prompt(prompt), sampling))
    while engine.busy:
        for _, output in engine.step():
            if output.text:
                yield output.text


def evaluate(opened: Opened, executor: Executor, file: Path, text_field: str, report: Report) -> dict[str, Any]:
    """What `stages.evaluate_file` measures, by the executor. UserError: see `text_stream`, or the text is too short."""
    with text_stream(file, opened.model.tokenizer, text=text_field, report=report) as stream:
        if stream.tokens < 2:
            raise UserError("the text has no token to predict; give a longer one")
        nats, tokens = likelihood(executor, stream.window(0, stream.tokens).astype(np.int64))
        return {
            "source": str(file),
            "loss": nats / tokens,
            "perplexity": math.exp(min(nats / tokens, 700.0)),
            "bits_per_byte": nats / math.log(2) / stream.text_bytes,
            "tokens": tokens,
            "bytes": stream.text_bytes,
            "documents": stream.documents,
        }


def _model(name: str, tokenizer: Tokenizer, settings: dict[str, Any], folder: Path) -> Model:
    ends = settings.get("eos_token_id")
    numbers = ends if isinstance(ends, list) else [ends]
    known = frozenset(number for number in numbers if isinstance(number, int))
    chat = templates.find(tokenizer, folder) or templates.Template(templates.PLAIN, "danlu's own", tokenizer)
    return Model(name, tokenizer, chat, known | {tokenizer.end_id})


def _json(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file}: not a JSON object")
    return found
