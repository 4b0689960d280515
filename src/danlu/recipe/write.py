"""Plain data as YAML that `read` gives back exactly: the library's own writer does not for some control characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_WIDTH = 120

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*( [\w./-]+)*", re.ASCII)
_NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
"""The last six are text in YAML 1.2; quotes keep them so in readers of YAML 1.1."""

_UNSAFE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON leaves bare and YAML forbids or takes for the end of a line."""


def yaml_text(tree: dict[str, Any]) -> str:
    """Dictionaries, lists, text, finite numbers, true, false and null as block YAML, in the order of the dictionaries."""
    return "\n".join(_section(tree, "")) + "\n"


def yaml_scalar(value: object) -> str:
    """A value on one line, as it is written inside brackets; text in quotes unless it is plain words."""
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{yaml_scalar(key)}: {yaml_scalar(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
    return json.dumps(value)


def _section(tree: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        name = f"{indent}{yaml_scalar(key)}:"
        entries = isinstance(value, list) and bool(value)
        if isinstance(value, dict) and value:
            yield name
            yield from _section(value, indent + "  ")
        elif entries and (isinstance(value[0], dict) or len(name) + len(yaml_scalar(value)) >= _WIDTH):
            yield name
            for entry in value:
                lines = _section(entry, "") if isinstance(entry, dict) else iter([yaml_scalar(entry)])
                yield from (f"{indent}  {'- ' if row == 0 else '  '}{line}" for row, line in enumerate(lines))
        else:
            yield f"{name} {yaml_scalar(value)}"
