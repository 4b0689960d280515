"""What is wrong with a recipe, as one line: the place, the field, what it must be, what it is, and the way out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError

from danlu.errors import UserError
from danlu.recipe.data_sections import Source
from danlu.recipe.fields import Path, annotation_at, describe, dotted, entry_annotation, field_at, section_class
from danlu.recipe.hints import Hint, nearest_choice, unknown_key
from danlu.recipe.write import yaml_scalar

_OTHERS_NAMED = 3

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)

_MAIN_KEYS: dict[Path, str] = {
    ("model",): "preset",
    ("data", "tokenizer"): "path",
    ("train", "optimizer"): "name",
    ("train", "schedule"): "name",
}
"""The key that a person means who writes text where a section belongs."""


class Problem(NamedTuple):
    """One thing that is wrong: the field, and a text that follows its name and a colon."""

    path: Path
    text: str


class Origins:
    """Where each field was given, so that an error can say so: a line of a file, or a command line override."""

    def __init__(self, file: str, lines: dict[Path, int] | None = None) -> None:
        self.file = file
        self.places = {path: f"{file}:{line}" for path, line in (lines or {}).items()}

    def override(self, path: Path, text: str) -> None:
        """Note that `path`, and all below it, was given on the command line as `text`."""
        self.places = {known: place for known, place in self.places.items() if known[: len(path)] != path}
        self.places[path] = f"override {shown_text(text)}"

    def of(self, path: Path) -> str:
        """The place of the nearest known field at or above `path`."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.file)


def fail(problems: Sequence[Problem], origins: Origins) -> UserError:
    """The error of a recipe with these problems: the first in full, the others by name, all on one line."""
    first, *others = problems
    line = ": ".join(part for part in (origins.of(first.path), dotted(first.path), first.text) if part)
    if others:
        names = [dotted(problem.path) or "the recipe" for problem in others[:_OTHERS_NAMED]]
        more = ", ..." if len(others) > _OTHERS_NAMED else ""
        line += f" (and {len(others)} more to mend: {', '.join(names)}{more})"
    return UserError(" ".join(line.encode("utf-8", "backslashreplace").decode().split()))


def from_validation(error: ValidationError, above: Path = ()) -> list[Problem]:
    """The problems in pydantic's report on a tree below `above`, unknown keys first, since they often cause the others."""
    unknown: list[Problem] = []
    wrong: list[Problem] = []
    meant: set[str] = set()
    for item in error.errors(include_url=False):
        path: Path = (*above, *item["loc"])
        if item["type"] in ("extra_forbidden", "invalid_key"):
            path = (*path[:-1], str(path[-1]))
            hint = unknown_key(path) if len(unknown) <= _OTHERS_NAMED else Hint("")  # only the first is told in full
            meant.update(hint.meant)
            unknown.append(Problem(path, f"no such key; {hint.text}"))
        else:
            wrong.append(_problem(path, item))
    return unknown + [problem for problem in wrong if not (dotted(problem.path) in meant and problem.text.startswith("missing"))]


def _problem(path: Path, item: Any) -> Problem:
    if item["type"] == "missing":
        field = field_at(path)
        meaning = f" ({field.description.rstrip('.')})" if field is not None and field.description else ""
        return Problem(path, f"missing; give {describe(path)}{meaning}")
    if item["type"] == "value_error":
        return Problem(path, str(item["ctx"]["error"]))
    if item["type"] == "shape":
        return Problem((*path, item["ctx"]["field"]), item["ctx"]["problem"])
    if item["type"] == "string_pattern_mismatch":
        field = field_at(path)
        meaning = field.description.rstrip(".") if field is not None and field.description else ""
        return Problem(path, f"{shown(item['input'])} does not fit ({meaning})")
    if annotation_at(path) is None:
        return Problem(path, f"not valid: {item['msg']}")
    return Problem(path, f"must be {describe(path)}, but is {shown(item['input'])}{_way_out(path, item['input'])}")


def _way_out(path: Path, value: object) -> str:
    """What to write instead, for the mistakes that people make."""
    annotation = annotation_at(path)
    if section_class(annotation) is not None:
        return _section_instead_of(path, value)
    if (entry := entry_annotation(annotation)) is not None:
        if not isinstance(value, str) or len(value) > 60:
            return ""
        return (
            f"; write [{{path: {yaml_scalar(value)}}}]" if section_class(entry) is Source else f"; write [{yaml_scalar(value)}]"
        )
    expected = describe(path)
    if get_origin(annotation) is Literal:
        near = nearest_choice(value, [str(choice) for choice in get_args(annotation)])
        return f"; did you mean {near}?" if near else ""
    if isinstance(value, str) and "number" in expected and _NUMBER.fullmatch(value.replace(",", "")):
        return f"; write {value.replace(',', '')}, without quotes"
    if isinstance(value, str) and expected.startswith("true") and value.lower() in ("yes", "on", "y", "no", "off", "n"):
        return f"; write {'true' if value.lower() in ('yes', 'on', 'y') else 'false'}"
    if isinstance(value, float) and expected.startswith("a whole") and value.is_integer() and abs(value) < 2**53:
        return f"; write {int(value)}"
    if expected.startswith("text") and isinstance(value, bool | int | float):
        return "; put it in quotes"
    return ""


def _section_instead_of(path: Path, value: object) -> str:
    if value is None:
        field = field_at(path)
        return "; give its keys, indented below it" + ("" if field is None or field.is_required() else ", or leave it out")
    if value == "auto":
        return "; only parallel and memory can be auto"
    key = "path" if path[:2] == ("data", "sources") else _MAIN_KEYS.get(path)
    return f"; write {{{key}: {yaml_scalar(value)}}}" if key and isinstance(value, str) and len(value) <= 60 else ""


def shown(value: object) -> str:
    """A value as an error shows it: short, on one line, and never a whole tree."""
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"the text {shown_text(value)}"
    if isinstance(value, dict):
        return "a section" if value else "an empty section"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"a Python {type(value).__name__}"


def shown_text(text: str) -> str:
    """Text in quotes, escaped and cut to a readable length."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
