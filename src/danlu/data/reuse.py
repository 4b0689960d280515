"""Whether a folder that is there already is what a recipe asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from danlu.data.ledger import Ledger
from danlu.data.prepared import WAY_OUT, Prepared
from danlu.data.sources import resolve
from danlu.data.tokenizer import tokenizer_file
from danlu.errors import UserError
from danlu.plural import many
from danlu.recipe.data_sections import DataSection
from danlu.recipe.sections import Recipe
from danlu.recipe.train_sections import SAMPLES

SHAPING = ("sources", "tokenizer", "validation_fraction", "shard_tokens", "curate", "chat")
"""Fields of the data section that the prepared files depend on; the others are read when batches are made."""


def reuse(recipe: Recipe, folder: Path, report: Callable[[str], None]) -> Prepared:
    """Open a prepared folder for a recipe.

    Raises:
        UserError: other data settings made it, it is damaged, or it does not fit the recipe's model or limits.
    """
    prepared = Prepared.open(folder)
    try:
        made_by = _shaping(prepared.index["data"])
    except ValidationError:
        raise UserError(f"{folder}: was prepared by another version of danlu, whose settings are not known; {WAY_OUT}") from None
    samples = prepared.index.get("samples") or SAMPLES[prepared.index.get("objective", "pretrain")]
    if samples != recipe.train.samples:
        raise UserError(
            f"{folder}: was prepared of {samples}, and train.objective {recipe.train.objective} reads {recipe.train.samples}; "
            f"use another run folder, or {WAY_OUT}"
        )
    length = prepared.index["data"].get("sequence_length")
    if samples != "text" and length != recipe.data.sequence_length:
        raise UserError(f"{folder}: {samples} were cut at data.sequence_length {length}; use another run folder, or {WAY_OUT}")
    differences = list(_differences(made_by, _shaping(recipe.data.model_dump(mode="json")), "data"))
    if differences:
        raise UserError(
            f"{folder}: was prepared with other settings: {'; '.join(differences[:5])}; use another run folder, or {WAY_OUT}"
        )
    _check_tokenizer(recipe.data, prepared)
    check_vocabulary(prepared.vocab_size, recipe, "the tokenizer's vocabulary")
    check_sizes(prepared.index, recipe)
    curated = prepared.index.get("curation")  # which is what read the sources then
    Ledger.of(curated["read"] if curated else prepared.index["report"], recipe.data.bad_line_limit).check()
    report(f"{folder}: already prepared, reused ({prepared.train.tokens:,} training tokens)")
    for line in _changes(recipe.data, prepared.index["sources"]):
        report(line)
    return prepared


def _shaping(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that count, with the trained tokenizer's defaults spelled out."""
    effective = DataSection.model_validate(data)
    shaping = {name: effective.model_dump(mode="json")[name] for name in SHAPING}
    training = effective.tokenizer.training
    shaping["tokenizer"]["train"] = training and training.model_dump(mode="json")
    if shaping["curate"] is not None:
        del shaping["curate"]["workers"]
    return shaping


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _differences(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif old != new:
        yield f"{path} was {_short(old)}, now {_short(new)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_tokenizer(data: DataSection, prepared: Prepared) -> None:
    """A loaded tokenizer must still be the one that made the tokens, if it is still there."""
    if data.tokenizer.path is None:
        return
    try:
        file = tokenizer_file(data.tokenizer.path)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except (UserError, OSError):
        return  # the folder has its own copy
    if digest != prepared.index["tokenizer"]["sha256"]:
        raise UserError(f"{prepared.folder}: was prepared with another tokenizer than {file} is now; {WAY_OUT}")


def _changes(data: DataSection, before: list[dict[str, Any]]) -> Iterator[str]:
    """Lines on sources that are not what they were."""
    try:
        now = resolve(data.sources).fingerprints
    except UserError as error:
        yield f"warning: the sources cannot be compared with those that were prepared: {error}"
        return
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        if old["sha256"] != new["sha256"]:
            yield (
                f"warning: data.sources[{number}] changed since: {many(old['files'], 'file')} of {old['bytes']:,} bytes then, "
                f"{new['files']:,} of {new['bytes']:,} now; to take them up, {WAY_OUT}"
            )


def check_vocabulary(vocab_size: int, recipe: Recipe, what: str) -> None:
    """Raise UserError when the model's embedding has fewer rows than there are tokens."""
    rows = recipe.model.vocab_size
    if rows is not None and vocab_size > rows:
        raise UserError(f"{what} ({vocab_size:,}) is larger than model.vocab_size ({rows:,}); raise that, or use fewer tokens")


def check_sizes(index: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise UserError when the training tokens do not make one sample."""
    if recipe.train.samples != "text" and index["splits"]["train"]["tokens"]:
        return  # a conversation is a sample, however short it is
    tokens, needed = index["splits"]["train"]["tokens"], recipe.data.sequence_length + 1
    if tokens < needed:
        raise UserError(
            f"data.sources: the training text has {tokens:,} tokens, less than one sample "
            f"(data.sequence_length + 1 = {needed:,}); add text, or lower data.sequence_length"
        )
