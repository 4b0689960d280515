"""YAML text to plain dictionaries, lists and scalars, with the line that every field stands on.

YAML 1.2, read through the node tree rather than a loader: only plain data can come of it, and a hostile file (aliases that
multiply, tags that name objects, endless nesting) is refused before it costs anything.
"""

from __future__ import annotations

import io
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from danlu.encoding import decoded
from danlu.errors import UserError
from danlu.recipe.fields import Path, dotted

SIZE_LIMIT = 1 << 18
"""Bytes. A recipe is written by a person; anything larger is another file, and would take seconds to read."""

DEPTH_LIMIT = 32
"""Sections inside sections; the recipe itself has five."""

Lines = dict[Path, int]

_TEXT_TAGS = {"str", "timestamp", "value", "merge"}
"""Dates, ``=`` and ``<<`` have no meaning in a recipe and stay the text that was written."""


def read_file(path: FilePath) -> tuple[object, Lines]:
    """The content of a YAML file and the line (from 1) of every path in it. Raises UserError."""
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe file; check the path, or copy one from recipes/") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name the recipe file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{str(path)!r}: cannot be read ({reason})") from None
    if len(raw) > SIZE_LIMIT:
        raise UserError(
            f"{path}: is larger than {SIZE_LIMIT:_} bytes, so it is no recipe; name the YAML file that describes the run"
        )
    return read_text(decoded(raw, path), str(path))


def read_text(text: str, where: str, *, one_line: bool = False) -> tuple[object, Lines]:
    """The content of YAML text and the line (from 1) of every path in it; `where` begins the error. Raises UserError.

    `one_line` is for text from a command line: its errors name no line.
    """
    reader = _Reader(where, one_line)
    if "\0" in text:
        raise UserError(
            f"{reader.at(text.count(chr(10), 0, text.index(chr(0))))}: holds a NUL byte, so it is no text; save it as UTF-8"
        )
    try:
        node = YAML(typ="safe", pure=True).compose(io.StringIO(text))
        return (None if node is None else reader.build(node, ())), reader.lines
    except RecursionError:
        raise UserError(f"{where}: is nested too deeply; a recipe has at most {DEPTH_LIMIT} levels") from None
    except YAMLError as error:
        raise UserError(reader.syntax_message(error, text)) from None


class _Reader:
    """The walk over one document's node tree."""

    def __init__(self, where: str, one_line: bool) -> None:
        self.where = where
        self.one_line = one_line
        self.lines: Lines = {}

    def at(self, row: int) -> str:
        """The place of a row (from 0) as an error names it."""
        return self.where if self.one_line else f"{self.where}:{row + 1}"

    def build(self, node: Node, path: Path) -> object:
        """The plain data of a node and all below it."""
        row = node.start_mark.line
        self.lines.setdefault(path, row + 1)
        here = f"{self.at(row)}: {dotted(path)}".rstrip(": ")
        if node.anchor is not None:
            raise UserError(
                f"{here}: anchors and aliases (&name, *name) are not read in a recipe; write the value out, or quote it"
            )
        if len(path) > DEPTH_LIMIT:
            raise UserError(f"{self.at(row)}: is nested too deeply; a recipe has at most {DEPTH_LIMIT} levels")
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, MappingNode) and kind == "map":
            return self._build_mapping(node, path)
        if isinstance(node, SequenceNode) and kind == "seq":
            return [self.build(entry, (*path, index)) for index, entry in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return _scalar(node.value, kind, here)
        raise UserError(f"{here}: the tag {_short(kind)} is not read in a recipe; leave it out")

    def _build_mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        content: dict[str, object] = {}
        for key_node, value_node in node.value:
            place = self.at(key_node.start_mark.line)
            if not isinstance(key_node, ScalarNode):
                raise UserError(f"{place}: a key must be a plain word; put text that begins with {{ or [ in quotes")
            key = _scalar(key_node.value, "str", f"{place}: a key")
            inner = (*path, key)
            if key in content:
                first = "" if self.one_line else f" (first on line {self.lines[inner]})"
                raise UserError(f"{place}: {dotted(inner)}: given twice{first}; keep one")
            self.lines[inner] = key_node.start_mark.line + 1
            content[key] = self.build(value_node, inner)
        return content

    def syntax_message(self, error: YAMLError, text: str) -> str:
        """One line from the parser's several: the place, what it stumbled over, and the usual cause."""
        if isinstance(error, ReaderError):
            row = text.count("\n", 0, error.position)
            return f"{self.at(row)}: holds the control character {text[error.position]!a}; delete it, or write it as an escape"
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or "a character that YAML does not allow"
        problem = _short(" ".join(problem.split()))[1:-1]
        if mark is None:
            return f"{self.where}: is not valid YAML ({problem}); save it as plain UTF-8 text"
        rows = text.splitlines()
        content = rows[mark.line] if mark.line < len(rows) else ""
        advice = "put text that begins with { [ * & ! | > % @ or ` or holds `: ` or ` #` in quotes"
        if content[: mark.column + 1].lstrip(" ").startswith("\t"):
            advice = "indent with spaces, not tabs"
        elif "another document" in problem:
            advice = "keep one recipe a file, without a second ---"
        return f"{self.at(mark.line)}: is not valid YAML ({problem}); {advice}"


def _scalar(text: str, kind: str, here: str) -> Any:
    """The value of a scalar: text, whole number, number, true, false or null."""
    if kind in _TEXT_TAGS:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{here}: holds half a character (a lone surrogate such as \\ud800); write the whole character")
        return text
    plain = text.replace("_", "").lower()
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return {"true": True, "false": False}[plain]
        if kind == "int":
            sign, digits = (-1 if plain[0] == "-" else 1), plain.lstrip("+-")
            base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
            if len(digits) > 64:
                raise UserError(f"{here}: the number {_short(text)} is too long; 64 digits are read at most")
            return sign * int(digits[2:] if base != 10 else digits, base)
        if kind == "float":
            return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except (ValueError, KeyError, IndexError):
        raise UserError(
            f"{here}: {_short(text)} is not a value of the kind {kind}; leave out the tag, or put the text in quotes"
        ) from None
    raise UserError(f"{here}: the tag {_short(kind)} is not read in a recipe; leave it out")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
