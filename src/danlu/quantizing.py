"""A model to 8 bits with the price of it: what `danlu quantize` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from danlu import export, serving
from danlu.compress import int8, stored
from danlu.compress.perplexity import WINDOW, perplexity
from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared
from danlu.data.text_file import text_stream
from danlu.engines.hugging_face import weights_files
from danlu.errors import UserError
from danlu.files import write_json
from danlu.model.families import tensor_shapes
from danlu.run_folder import RECIPE, RunFolder

COPIED = (tokenizers.FILE, tokenizers.SETTINGS, "special_tokens_map.json", "generation_config.json", tokenizers.TEMPLATE)
WORST = 5

Report = Callable[[str], None]


def quantize(
    path: Path, to: Path, weights_only: bool, file: Path | None, field: str, tokens: int, replace: bool, report: Report
) -> dict[str, Any]:
    """Write the model at ``path`` with 8-bit weights; sizes, perplexity on the text before and after, and the worst matrices.

    UserError: it is quantized already, cannot be opened, its weights are damaged, the text is too short, or see `export.check`.
    """
    from danlu.serve.load import load

    export.check(to, replace)
    opened = serving.open_model(path, report)
    if opened.scheme != "plain":
        raise UserError(f"{path} has 8-bit weights already; give the model that it was made from")
    scheme: stored.Scheme = "w8" if weights_only else "w8a8"
    text = _text(opened, path, file, field, tokens, report)
    made = int8.quantize(_plain(opened))
    with export.written(to, replace) as partial:
        write(opened, path, partial, made.arrays, scheme)
    size = sum(file.stat().st_size for file in weights_files(to))
    plain = sum(4 * int(np.prod(each)) for each in tensor_shapes(opened.shape).values())
    result: dict[str, Any] = {"bytes": size, "size_ratio": size / plain, "tokens": 0 if text is None else len(text)}
    before, after, executor = None, None, None
    if text is not None:
        before = perplexity(load(opened.shape, opened.weights, "plain", WINDOW, "cpu"), text)
        small = load(opened.shape, to, scheme, WINDOW, "cpu")
        after, executor = perplexity(small, text), type(small).__name__
    increase = None if before is None or after is None else after / before - 1
    result |= {"perplexity_before": before, "perplexity_after": after, "perplexity_increase": increase, "executor": executor}
    worst = sorted(made.errors.items(), key=lambda it: -it[1])[:WORST]
    return {**result, "worst": dict(worst)}


def arrays(opened: serving.Opened, scheme: stored.Scheme) -> stored.Arrays:
    """The weights of a model as this scheme stores them: its own, or 8 bits of plain ones. UserError: they are damaged."""
    if opened.scheme != "plain":
        assert scheme == opened.scheme
        return stored.read(opened.shape, opened.weights)
    return _plain(opened) if scheme == "plain" else int8.quantize(_plain(opened)).arrays


def write(opened: serving.Opened, path: Path, folder: Path, weights: stored.Arrays, scheme: stored.Scheme) -> None:
    """The model at ``path`` into an empty folder in the Hugging Face layout, with these weights."""
    source = RunFolder.open(path).data if (path / RECIPE).is_file() else path
    stored.write(weights, folder)
    section = {} if scheme == "plain" else {stored.SECTION: stored.section(scheme)}
    write_json(folder / "config.json", {**opened.config, **section})
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _plain(opened: serving.Opened) -> stored.Arrays:
    from danlu.serve.weights import load_weights

    return {name: tensor.numpy() for name, tensor in load_weights(opened.shape, opened.weights).items()}


def _text(
    opened: serving.Opened, path: Path, file: Path | None, field: str, tokens: int, report: Report
) -> NDArray[np.int64] | None:
    """The first tokens to measure on: of the file, of what a run held out, or None where there is neither."""
    if file is not None:
        with text_stream(file, opened.model.tokenizer, text=field, report=report) as stream:
            found = stream.window(0, min(tokens, stream.tokens))
    elif (path / RECIPE).is_file() and (held_out := Prepared.open(RunFolder.open(path).data).validation).tokens:
        found = held_out.window(0, min(tokens, held_out.tokens))
    else:
        return None
    if len(found) < 2:
        raise UserError("the text has no token to predict; give a longer one")
    return found.astype(np.int64)
