"""A recipe as YAML, against the defaults, and against another recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from danlu.errors import UserError
from danlu.model.presets import preset
from danlu.model.shape import ModelShape
from danlu.recipe.fields import Entry, Path, dotted, field_names
from danlu.recipe.resolve import SHAPE_FIELDS, shape_fields
from danlu.recipe.sections import AUTOMATIC, ModelSection, Recipe
from danlu.recipe.write import yaml_text

FROM_CHECKPOINT = "from the checkpoint"
"""Stands for the default of a field that model.hugging_face decides."""

_ABSENT = object()


def dump(recipe: Recipe) -> str:
    """The recipe as YAML in the order of the types, defaults included; `load` reads it back equal.

    Of the model only the fields that were given are written: beside a preset or a checkpoint a written default would override it.
    """
    tree: dict[str, Any] = {name: _plain(getattr(recipe, name)) for name in Recipe.model_fields}
    given = recipe.model.model_dump(mode="python", exclude_unset=True)
    tree["model"] = {name: given[name] for name in field_names(ModelSection) if name in given}
    for name in AUTOMATIC:
        if (section := getattr(recipe, name)).auto:  # a written default would be a setting to keep
            tree[name] = section.model_dump(mode="python", exclude_unset=True)
    return yaml_text(tree)


def differences(recipe: Recipe) -> list[tuple[str, object, object]]:
    """(dotted path, value, default) of every field that differs from its default, in the order of the types.

    Fields without a default (name, data.sources and their paths) are no difference. Beside a preset the defaults of the model's
    fields are the preset's; beside model.hugging_face the text `from the checkpoint` stands for them.
    """
    return [(dotted(path), _plain(value), default) for path, value, default in _differences(recipe, ())]


def _differences(section: BaseModel, above: Path) -> Iterator[tuple[Path, Any, Any]]:
    for name in field_names(type(section)):
        path, value = (*above, name), getattr(section, name)
        default = _default(section, name, type(section).model_fields[name])
        if isinstance(value, BaseModel) and (isinstance(default, BaseModel) or default is _ABSENT):
            yield from _differences(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, entry in enumerate(value):
                yield from _differences(entry, (*path, index))
        elif default is not _ABSENT and value != default:
            yield path, value, _plain(default)


def _default(section: BaseModel, name: str, field: FieldInfo) -> Any:
    if isinstance(section, ModelSection) and name in SHAPE_FIELDS:
        if name not in section.model_fields_set:
            return getattr(section, name)
        if section.hugging_face is not None:
            return FROM_CHECKPOINT
        if (base := _preset(section)) is not None:
            return getattr(base, name)
    return _ABSENT if field.is_required() else field.get_default(call_default_factory=True)


def resume_conflicts(old: Recipe, new: Recipe) -> list[tuple[str, object, object]]:
    """(dotted path, old value, new value) of the fields that differ and may not, when a run is resumed with another recipe.

    Two ways of saying the same (a preset, or its dimensions spelled out; a default left out, or written) do not conflict.
    """
    before, after = dict(_fixed(_spelled_out(old))), dict(_fixed(_spelled_out(new)))
    paths = [*before, *(path for path in after if path not in before)]
    return [(dotted(path), before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)]


def _spelled_out(recipe: Recipe) -> Recipe:
    """The recipe with what its nulls stand for."""
    data, train = recipe.data, recipe.train
    tokenizer = data.tokenizer.model_copy(update={"train": data.tokenizer.training})
    schedule = train.schedule.model_copy(update={"warmup_steps": recipe.warmup_steps, "warmup_fraction": None})
    return recipe.model_copy(
        update={
            "data": data.model_copy(update={"tokenizer": tokenizer}),
            "train": train.model_copy(update={"schedule": schedule}),
            "memory": recipe.memory.model_copy(update={"micro_batch": recipe.micro_batch}),
        }
    )


def _fixed(section: BaseModel, above: Path = ()) -> Iterator[tuple[Path, object]]:
    """Path and value of all fields that a resumed run must share."""
    if isinstance(section, ModelSection):
        fields = shape_fields(section, _preset(section))
        yield (*above, "hugging_face"), section.hugging_face
        yield (*above, "mup"), _plain(section.mup)
        for name in SHAPE_FIELDS:
            absent = None if section.hugging_face else _declared(name)
            yield (*above, name), _plain(fields.get(name, absent))
        return
    for name, field in type(section).model_fields.items():
        path, value = (*above, name), getattr(section, name)
        if Entry(path, field).resumable:
            continue
        if isinstance(value, BaseModel):
            yield from _fixed(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, entry in enumerate(value):
                yield from _fixed(entry, (*path, index))
        else:
            yield path, value


def _declared(name: str) -> object:
    field = ModelSection.model_fields[name]
    return field.get_default(call_default_factory=True)


def _preset(model: ModelSection) -> ModelShape | None:
    try:
        return None if model.preset is None else preset(model.preset)
    except UserError:  # a recipe that was not checked; its preset is reported where it is used
        return None


def _plain(value: Any) -> Any:
    return value.model_dump(mode="python") if isinstance(value, BaseModel) else value
