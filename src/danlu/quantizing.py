"""A model to few bits with the price of it: what `danlu quantize` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from danlu import export, serving
from danlu.compress import quantize as small
from danlu.compress import stored
from danlu.compress.perplexity import WINDOW, perplexity
from danlu.compress.plan import Plan, Scheme, matrices, module
from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared
from danlu.data.text_file import text_stream
from danlu.engines.hugging_face import weights_files
from danlu.errors import UserError
from danlu.files import write_json
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape
from danlu.run_folder import RECIPE, RunFolder

COPIED = (tokenizers.FILE, tokenizers.SETTINGS, "special_tokens_map.json", "generation_config.json", tokenizers.TEMPLATE)
WORST = 5

Report = Callable[[str], None]


class Text(NamedTuple):
    """A text to read so many tokens of, at most."""

    file: Path
    field: str
    """Of JSON and Parquet, what holds the text."""
    tokens: int


def quantize(
    path: Path,
    to: Path,
    plan: Plan,
    calibrate: Text | None,
    measure: Text | int,
    int8_cache: bool,
    replace: bool,
    report: Report,
) -> dict[str, Any]:
    """Write the model at ``path`` by a plan; sizes, perplexity before and after, errors by matrix, and what to leave alone.

    Perplexity is that of ``measure``; a number is of the tokens that a run held out. With ``int8_cache`` also that of the float
    model whose keys and values are in 8 bits.
    UserError: it is quantized already, cannot be opened, its weights are damaged, the plan does not fit, a text is too short, or
    see `export.check`.
    """
    export.check(to, replace)
    opened = serving.open_model(path, report)
    if opened.scheme != "plain":
        raise UserError(f"{path} is quantized already; give the model that it was made from")
    matrices(opened.shape, plan)  # before texts are read
    text = _held_out(path, measure) if isinstance(measure, int) else _tokens(opened, measure, report)
    if text is not None and len(text) < 2:
        raise UserError("the text has no token to predict; give a longer one")
    example = None if calibrate is None else _tokens(opened, calibrate, report)
    made = small.quantize(opened.shape, _plain(opened), plan, example)
    with export.written(to, replace) as partial:
        write(opened, path, partial, made.arrays, plan.scheme)
    size = sum(file.stat().st_size for file in weights_files(to))
    result: dict[str, Any] = {"bytes": size, "size_ratio": size / _float_bytes(opened.shape)}
    result |= {"tokens": 0 if text is None else len(text), "calibration_tokens": 0 if example is None else len(example)}
    result |= _price(opened, to, plan.scheme, text, int8_cache)
    return {**result, **_losses(opened.shape, made, plan, size)}


def _price(
    opened: serving.Opened, to: Path, scheme: Scheme, text: NDArray[np.int64] | None, int8_cache: bool
) -> dict[str, float | str | None]:
    from danlu.serve.load import load

    names = (
        "perplexity_before",
        "perplexity_after",
        "perplexity_increase",
        "executor",
        "perplexity_int8_cache",
        "int8_cache_increase",
    )
    result: dict[str, float | str | None] = dict.fromkeys(names)
    if text is None:
        return result
    before = perplexity(load(opened.shape, opened.weights, "plain", WINDOW, "cpu"), text)
    changed = load(opened.shape, to, scheme, WINDOW, "cpu")
    after = perplexity(changed, text)
    result |= {"perplexity_before": before, "perplexity_after": after, "perplexity_increase": after / before - 1}
    result["executor"] = type(changed).__name__
    if int8_cache:
        cached = perplexity(load(opened.shape, opened.weights, "plain", WINDOW, "cpu", "int8"), text)
        result |= {"perplexity_int8_cache": cached, "int8_cache_increase": cached / before - 1}
    return result


def _losses(shape: ModelShape, made: small.Quantized, plan: Plan, size: int) -> dict[str, Any]:
    """Errors by matrix and by layer, the worst matrices, and the size if these stayed floats."""
    worst = dict(sorted(made.errors.items(), key=lambda it: -it[1])[:WORST])
    layers: dict[str, list[float]] = {}
    for name, error in made.errors.items():
        layers.setdefault(name.rpartition(".mlp.")[0] or name.rpartition(".self_attn.")[0] or module(name), []).append(error)
    means = {name: (sum(error**2 for error in each) / len(each)) ** 0.5 for name, each in layers.items()}
    more = sum((4 - plan.bits_of(name) / 8) * made.arrays[name].size for name in worst)
    kept = {"keep": [module(name) for name in worst], "size_ratio": (size + more) / _float_bytes(shape)}
    return {"errors": made.errors, "layer_errors": means, "worst": worst, "suggestion": kept}


def arrays(opened: serving.Opened, scheme: Scheme) -> stored.Arrays:
    """The weights of a model as this scheme stores them: its own, or 8 bits of plain ones. UserError: they are damaged."""
    if opened.scheme != "plain":
        assert scheme == opened.scheme
        return stored.read(opened.shape, opened.weights, scheme)
    return _plain(opened) if scheme == "plain" else small.quantize(opened.shape, _plain(opened), Plan(scheme)).arrays


def write(opened: serving.Opened, path: Path, folder: Path, weights: stored.Arrays, scheme: Scheme) -> None:
    """The model at ``path`` into an empty folder in the Hugging Face layout, with these weights."""
    source = RunFolder.open(path).data if (path / RECIPE).is_file() else path
    stored.write(weights, folder, scheme)
    section = {} if scheme == "plain" else {stored.SECTION: stored.section(scheme, opened.shape, weights)}
    write_json(folder / "config.json", {**opened.config, **section})
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _plain(opened: serving.Opened) -> stored.Arrays:
    from danlu.serve.weights import load_weights

    return {name: tensor.numpy() for name, tensor in load_weights(opened.shape, opened.weights).items()}


def _float_bytes(shape: ModelShape) -> int:
    return sum(4 * int(np.prod(each)) for each in tensor_shapes(shape).values())


def _tokens(opened: serving.Opened, text: Text, report: Report) -> NDArray[np.int64]:
    with text_stream(text.file, opened.model.tokenizer, text=text.field, report=report) as stream:
        return stream.window(0, min(text.tokens, stream.tokens)).astype(np.int64)


def _held_out(path: Path, tokens: int) -> NDArray[np.int64] | None:
    """Of what a run kept for validation; None where there is none."""
    if not (path / RECIPE).is_file() or not (found := Prepared.open(RunFolder.open(path).data).validation).tokens:
        return None
    return found.window(0, min(tokens, found.tokens)).astype(np.int64)
