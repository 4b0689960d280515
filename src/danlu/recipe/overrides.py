"""Dotted overrides from the command line: ``train.optimizer.learning_rate=1e-4``, ``data.sources.0.weight=2``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danlu.errors import UserError
from danlu.recipe.explain import Origins, Problem, fail, shown, shown_text
from danlu.recipe.fields import Path, describe, dotted, entry_annotation, section_class
from danlu.recipe.hints import unknown_key
from danlu.recipe.read import read_text
from danlu.recipe.sections import AUTOMATIC, Recipe

_ABSENT: Any = object()


def apply(tree: dict[str, object], overrides: Sequence[str], origins: Origins) -> dict[str, object]:
    """The tree with the overrides put in, in order (the last one wins); the given tree is left as it is.

    An override is ``path=value`` with the value in YAML: a number, text, null, a list, a section. The entries of a list are
    counted from 0, and the number after the last one adds an entry. Raises UserError.
    """
    for text in overrides:
        path_text, equals, value_text = text.partition("=")
        names = path_text.strip().split(".")
        if not equals or not names[0]:
            raise UserError(f"override {shown_text(text)}: has no path=value; write it like train.steps=10")
        value, _ = read_text(value_text, f"override {shown_text(text)}", one_line=True)
        tree = _set(spelled_out(tree), Recipe, _ABSENT, (), names, value, Origins(f"override {shown_text(text)}"))
        path: Path = ()
        node: object = tree
        for name in names:  # the numbers of list entries, which only the tree tells from keys
            path = (*path, int(name) if isinstance(node, list) else name)
            node = node[path[-1]]  # type: ignore[index]
        origins.override(path, text)
    return tree


def spelled_out(tree: dict[str, object]) -> dict[str, object]:
    """``parallel: auto`` as ``parallel: {auto: true}``, the same for memory, so that fields can be put beside it."""
    return tree | {name: {"auto": True} for name in AUTOMATIC if tree.get(name) == "auto"}


def _set(node: Any, annotation: Any, default: Any, above: Path, names: Sequence[str], value: object, origins: Origins) -> Any:
    """The node with the value at `names` below it; `annotation` is the node's declared type, `default` what it is when absent."""
    if not names:
        return value
    name, *rest = names
    if (section := section_class(annotation)) is not None:
        path = (*above, name)
        field = section.model_fields.get(name)
        if field is None:
            raise fail([Problem(path, f"no such key; {unknown_key(path).text}")], origins)
        content = {} if node is _ABSENT or node is None or node == "default" else node
        if not isinstance(content, dict):
            raise fail([Problem(above, f"{shown(node)} is no section, so {dotted(path)} cannot be set; mend it first")], origins)
        inner_default = _ABSENT if field.is_required() else field.get_default(call_default_factory=False)
        inner = _set(content.get(name, _ABSENT), field.annotation, inner_default, path, rest, value, origins)
        return {**content, name: inner}
    if (entry := entry_annotation(annotation)) is not None:
        content = (
            list(default) if node is _ABSENT and isinstance(default, list) else [] if node is _ABSENT or node is None else node
        )
        if not isinstance(content, list):
            raise fail([Problem(above, f"{shown(node)} is no list, so {name} cannot be set in it; mend it first")], origins)
        if not (name.isascii() and name.isdigit() and len(name) < 7 and int(name) <= len(content)):
            count = f"it has {len(content)}, so 0 to {len(content)} can be set" if content else "it has none, so begin with 0"
            raise fail(
                [Problem((*above, name), f"no such entry; {dotted(above)} is a list, counted from 0, and {count}")], origins
            )
        index = int(name)
        old = content[index] if index < len(content) else _ABSENT
        return [*content[:index], _set(old, entry, _ABSENT, (*above, index), rest, value, origins), *content[index + 1 :]]
    raise fail(
        [Problem(above, f"holds {describe(above)}, so there is no {dotted((*above, name))}; set {dotted(above)}")], origins
    )
