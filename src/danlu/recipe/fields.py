"""The recipe's fields as data, read from the types: what errors, hints, the reference and the comparison of recipes walk over."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from danlu.recipe.sections import Recipe

Path = tuple[str | int, ...]

_WORD = re.compile(r"[\w-]{1,60}")


def dotted(path: Path) -> str:
    """``("data", "sources", 0)`` as ``data.sources.0``; keys that are no plain word are quoted, so that they stay on one line."""
    return ".".join(str(part) if isinstance(part, int) or _WORD.fullmatch(part) else repr(part[:60]) for part in path)


def section_class(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, or None; ``Section | None`` counts."""
    kind, _ = _without_null(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def entry_annotation(annotation: Any) -> Any | None:
    """The type of a list's entries, or None when the field is no list."""
    kind, _ = _without_null(annotation)
    return get_args(kind)[0] if get_origin(kind) is list else None


def _without_null(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0], len(get_args(annotation)) > 1
    return annotation, False


def field_at(path: Path) -> FieldInfo | None:
    """The field at a path below the recipe; None for the recipe itself, an entry of a list, or a path that does not exist."""
    if not path or isinstance(path[-1], int):
        return None
    section = section_class(annotation_at(path[:-1]))
    return section.model_fields.get(path[-1]) if section else None


def annotation_at(path: Path) -> Any | None:
    """The declared type at a path below the recipe; None when the path does not exist."""
    annotation: Any = Recipe
    for part in path:
        section = section_class(annotation)
        if section is None:
            annotation = entry_annotation(annotation) if isinstance(part, int) else None
        else:
            field = section.model_fields.get(str(part))
            annotation = field.annotation if field else None
        if annotation is None:
            return None
    return annotation


def field_names(section: type[BaseModel]) -> list[str]:
    """The names of a section's fields, its own before those it inherits: a model's preset stands before its details."""
    own = set(section.__annotations__)
    return sorted(section.model_fields, key=lambda name: name not in own)


class Entry(NamedTuple):
    """One field of the recipe."""

    path: Path
    field: FieldInfo

    @property
    def resumable(self) -> bool:
        """Whether the field may differ when a run is resumed."""
        extra = self.field.json_schema_extra
        return isinstance(extra, dict) and bool(extra.get("resumable"))


@lru_cache(maxsize=1)
def every_field() -> tuple[Entry, ...]:
    """All fields in the order of the types, sections before their content; the entries of a list of sections stand under 0."""
    return tuple(_walk(Recipe, ()))


def _walk(section: type[BaseModel], above: Path) -> Iterator[Entry]:
    for name in field_names(section):
        field, path = section.model_fields[name], (*above, name)
        yield Entry(path, field)
        inner = section_class(field.annotation)
        if inner is None and (entries := entry_annotation(field.annotation)) is not None:
            inner, path = section_class(entries), (*path, 0)
        if inner is not None:
            yield from _walk(inner, path)


def describe(path: Path) -> str:
    """What the field at a path must be, in plain words: ``a whole number above 0, or null``."""
    field = field_at(path)
    if field is not None:
        return describe_type(field.annotation, field.metadata)
    return describe_type(annotation_at(path), [])


def describe_type(annotation: Any, metadata: Sequence[Any]) -> str:
    """A type and its limits in plain words."""
    if get_origin(annotation) is Annotated:
        kind, *narrower = get_args(annotation)
        return describe_type(kind, [*metadata, *narrower])
    kind, nullable = _without_null(annotation)
    limits = _limits(metadata)
    entries = entry_annotation(kind)
    if entries is not None:
        text = f"a list{_length(limits)}, each {describe_type(entries, [])}"
    elif get_origin(kind) is Literal:
        text = listed([str(choice) for choice in get_args(kind)], "or")
    elif section_class(kind) is not None:
        text = "a section (`key: value` lines)"
    elif kind in (int, float):
        text = ("a whole number" if kind is int else "a number") + _range(limits)
    else:
        text = {bool: "true or false", str: "text"}[kind]
    return f"{text}, or null" if nullable else text


def listed(words: Sequence[str], last: str) -> str:
    """``a, b or c``."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def _limits(metadata: Sequence[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            limits |= _limits(item.metadata)
        for kind in (annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le):
            if isinstance(item, kind):
                limits[kind.__name__] = getattr(item, kind.__name__.lower())
        if isinstance(item, annotated_types.MinLen):
            limits["MinLen"] = item.min_length
        if isinstance(item, annotated_types.MaxLen):
            limits["MaxLen"] = item.max_length
    return limits


def _range(limits: dict[str, Any]) -> str:
    above, least, below, most = (limits.get(name) for name in ("Gt", "Ge", "Lt", "Le"))
    low = f"above {above:g}" if above is not None else f"from {least:g}" if least is not None else ""
    high = (
        f"to {most:.10g}" if most is not None else f"to below {'2^63' if below == 2**63 else below}" if below is not None else ""
    )
    if low and high:
        return f" {low} {high}".replace("above 0 to", "above 0 up to")
    return f" {low} up" if low.startswith("from") else f" {low or high}".rstrip()


def _length(limits: dict[str, Any]) -> str:
    least, most = limits.get("MinLen"), limits.get("MaxLen")
    if least is not None and least == most:
        return f" of exactly {least}"
    return f" of at least {least}" if least else ""
