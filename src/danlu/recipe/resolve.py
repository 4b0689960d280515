"""From the recipe's model section to a shape with every dimension known."""

from __future__ import annotations

import json
import math
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from danlu.errors import UserError
from danlu.model.presets import PRESETS, preset
from danlu.model.shape import Architecture, ModelShape
from danlu.recipe.explain import Origins, Problem, fail, from_validation
from danlu.recipe.fields import Path, annotation_at, listed
from danlu.recipe.sections import ModelSection, Recipe

DIMENSIONS = ("layers", "hidden_size", "ffn_size", "heads")
"""What has no default: a preset or a checkpoint gives them, or the recipe does. The vocabulary comes from the tokenizer."""

SHAPE_FIELDS = tuple(ModelShape.model_fields)

_FREE_BESIDE_A_CHECKPOINT = (
    "max_sequence_length",
    "rope_theta",
    "rope_scaling",
    "norm_epsilon",
    "sliding_window",
    "full_attention_layers",
)
"""What may be changed beside imported weights, since no tensor's shape or name depends on it."""


def resolve_shape(recipe: Recipe, vocab_size: int | None) -> ModelShape:
    """The shape: the preset's or the checkpoint's with the fields that the recipe gives beside it, or the one spelled out.

    `vocab_size` is the tokenizer's size; None before there is one, when the size asked of a tokenizer to be trained stands in.
    The embedding has model.vocab_size rows if the recipe gives it, else the tokenizer's size, else the preset's; beside
    model.hugging_face always the checkpoint's, since the weights have it. Reads model.hugging_face's config.json from disk.
    Raises UserError naming the field: dimensions missing or contradicting, a tokenizer larger than the embedding.
    """
    origins = Origins("recipe")
    base = checkpoint_shape(recipe.model) if recipe.model.hugging_face is not None else None
    shape, problems = combine(recipe, vocab_size, base)
    if shape is None or problems:
        raise fail(problems, origins)
    return shape


def combine(recipe: Recipe, vocab_size: int | None, base: ModelShape | None = None) -> tuple[ModelShape | None, list[Problem]]:
    """The shape and what is wrong with it; `base` is the checkpoint's shape beside model.hugging_face. Reads no file."""
    model = recipe.model
    if base is None and model.preset is not None:
        try:
            base = preset(model.preset)
        except UserError as error:
            return None, [_from_model_room(error)]
    fields = shape_fields(model, base)
    if missing := [name for name in DIMENSIONS if name not in fields]:
        names = listed([f"model.{name}" for name in missing], "and")
        text = f"give preset or hugging_face, or every dimension; missing here: {names}"
        return None, [Problem(("model",), text)]
    size, problems = _vocabulary(recipe, vocab_size, base)
    if model.hugging_face is not None and base is not None:
        problems += _against_checkpoint(model, base)
    if problems:
        return None, problems
    try:
        shape = ModelShape.model_validate(fields | {"vocab_size": size or 1})
    except ValidationError as error:
        return None, from_validation(error, ("model",))
    problems = _shape_problems(recipe, shape)
    if size is None and not problems:
        text = "is not known before the data is prepared: prepare first, or give the number of tokens of data.tokenizer.path"
        problems = [Problem(("model", "vocab_size"), text)]
    return shape, problems


def shape_fields(model: ModelSection, base: ModelShape | None) -> dict[str, Any]:
    """The fields of the shape that are known without the tokenizer: the base's, then those that the recipe gives.

    A null overrides a base only where null means something (kv_heads, sliding_window, ...), not for a dimension.
    """
    fields: dict[str, Any] = {name: getattr(base, name) for name in SHAPE_FIELDS} if base is not None else {}
    for name in SHAPE_FIELDS:
        value = getattr(model, name)
        if name in model.model_fields_set and (value is not None or name in Architecture.model_fields):
            fields[name] = value
    return fields


def checkpoint_shape(model: ModelSection) -> ModelShape:
    """The shape in the config.json of model.hugging_face. Raises UserError if it is absent, broken or of an unknown family."""
    return folder_shape(FilePath(str(model.hugging_face)).expanduser(), ("model", "hugging_face"))


def folder_shape(folder: FilePath, field: Path) -> ModelShape:
    """The shape in the config.json of a folder that a field names. Raises UserError as `checkpoint_shape`."""
    from danlu.model.families import from_hugging_face  # reaches numpy

    file = folder / "config.json"

    def refuse(text: str) -> UserError:
        return fail([Problem(field, text)], Origins("recipe"))

    try:
        config = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir():
            raise refuse(f"{folder} holds no config.json; name a folder in the Hugging Face layout") from None
        name = folder.name.lower()
        hint = f"; for its shape with new weights write preset: {name}" if name in PRESETS else ""
        raise refuse(f"there is no folder {folder}; danlu downloads nothing, so fetch the model first{hint}") from None
    except OSError as error:
        raise refuse(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise refuse(f"{file} is not valid JSON; fetch the model again") from None
    try:
        return from_hugging_face(config)
    except UserError as error:
        raise refuse(f"{folder}: {error}") from None


def _vocabulary(recipe: Recipe, tokenizer: int | None, base: ModelShape | None) -> tuple[int | None, list[Problem]]:
    """Rows of the embedding, and whether every token of the tokenizer has one."""
    own, training = recipe.model.vocab_size, recipe.data.tokenizer.training
    planned = training.vocab_size if tokenizer is None and training is not None else tokenizer
    called = "data.tokenizer.train.vocab_size" if tokenizer is None else "the tokenizer's vocabulary"
    if recipe.model.hugging_face is not None and base is not None:
        if planned is not None and planned > base.vocab_size:
            way_out = "give the checkpoint's own in data.tokenizer.path"
            text = f"its embedding has {base.vocab_size} rows, but {called} is {planned}; {way_out}"
            return base.vocab_size, [Problem(("model", "hugging_face"), text)]
        return base.vocab_size, []
    if own is not None and planned is not None and planned > own:
        text = f"{own} is smaller than {called} ({planned}); give at least {planned}, or leave model.vocab_size out"
        return own, [Problem(("model", "vocab_size"), text)]
    return own or planned or (base.vocab_size if base is not None else None), []


def _against_checkpoint(model: ModelSection, base: ModelShape) -> list[Problem]:
    """Fields beside model.hugging_face that its weights contradict."""
    problems = []
    for name in SHAPE_FIELDS:
        given, has = getattr(model, name), getattr(base, name)
        if name == "kv_heads":
            has = base.key_value_heads
        if name == "head_size":
            has = base.head_dim
        if name in _FREE_BESIDE_A_CHECKPOINT or name not in model.model_fields_set or given is None or given == has:
            continue
        text = f"{_yaml(given)} contradicts the weights in model.hugging_face, which have {_yaml(has)}; leave it out"
        problems.append(Problem(("model", name), text))
    return problems


def _shape_problems(recipe: Recipe, shape: ModelShape) -> list[Problem]:
    """What the dimensions of the whole model say against the rest of the recipe, and against their family."""
    from danlu.model.families import check_family  # reaches numpy

    given, problems = recipe.model.model_fields_set, []
    length, most = recipe.data.sequence_length, shape.max_sequence_length
    if length > most:
        text = f"{length} is above model.max_sequence_length ({most}); lower it to {most}, or raise model.max_sequence_length"
        problems.append(Problem(("data", "sequence_length"), text))
    window, full = shape.sliding_window, shape.full_attention_layers
    if window is not None and window > most and "sliding_window" in given:
        text = f"{window} is above model.max_sequence_length ({most}), so it would do nothing; lower it, or leave it out"
        problems.append(Problem(("model", "sliding_window"), text))
    if full and "full_attention_layers" in given and window is None:
        problems.append(
            Problem(("model", "full_attention_layers"), f"{full} does nothing without model.sliding_window; give both or none")
        )
    if full >= shape.layers and window is not None and given & {"full_attention_layers", "sliding_window", "layers"}:
        text = f"{full} of {shape.layers} layers leave none for model.sliding_window; give at most {shape.layers - 1}"
        problems.append(Problem(("model", "full_attention_layers"), text))
    problems += _layout_problems(recipe, shape)
    try:
        check_family(shape)
    except UserError as error:
        problems.append(_from_model_room(error))
    return problems


def _layout_problems(recipe: Recipe, shape: ModelShape) -> list[Problem]:
    """Degrees of parallelism that the model's dimensions do not divide into."""
    parallel, problems = recipe.parallel, []
    for name, value in (("heads", shape.heads), ("kv_heads", shape.key_value_heads), ("ffn_size", shape.ffn_size)):
        if value % parallel.tensor:
            text = f"{parallel.tensor} does not divide model.{name} ({value}); give {listed(_divisors(shape), 'or')}"
            problems.append(Problem(("parallel", "tensor"), text))
            break
    stages = parallel.pipeline * parallel.stages_a_rank
    if stages > shape.layers:
        most = shape.layers * parallel.pipeline // stages
        text = f"{parallel.pipeline} makes {stages} stages of {shape.layers} layers; give at most {most}"
        problems.append(Problem(("parallel", "pipeline"), text))
    return problems


def _divisors(shape: ModelShape) -> list[str]:
    common = math.gcd(shape.heads, shape.key_value_heads, shape.ffn_size)
    return [str(n) for n in range(1, common + 1) if common % n == 0]


def _from_model_room(error: UserError) -> Problem:
    """The model room's message (``model.preset: ...``, ``model: qk_norm must ...``) as a problem of the field that it names."""
    first, _, rest = str(error).partition(" ")
    path: Path = tuple(first.rstrip(":").split("."))
    if annotation_at(path) is None:
        return Problem(("model",), str(error))
    field, _, said = rest.partition(" ")
    return (
        Problem((*path, field), said) if path == ("model",) and annotation_at((*path, field)) is not None else Problem(path, rest)
    )


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
