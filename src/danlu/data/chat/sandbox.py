"""Jinja for templates that come from elsewhere: they reach nothing outside, and what loops or calls for ever is stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from danlu.data.chat.forms import Unfit

STEPS = 100_000
"""Rounds of loops and calls of one rendering, together."""
CHARACTERS = 10_000_000
"""Of what one rendering makes."""
_SPENT = "steps so far"
"""A name that no template can write, in what it is given."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment that counts, with the functions that Hugging Face gives to templates."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}
        self.filters |= {"tojson": _json, "counted": _counted}
        del self.globals["lipsum"]  # makes text without end

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Of functions and macros, which may call themselves."""
        _spend(__context, 1)
        return super().call(__context, __obj, *args, **named)


def pieces(template: Template, values: Mapping[str, Any]) -> Iterator[str]:
    """What a template makes of the values. Unfit: it fails, or goes on and on."""
    size = 0
    try:
        for piece in template.generate({**values, _SPENT: [0]}):
            size += len(piece)
            if size > CHARACTERS:
                raise Unfit(f"the chat template made more than {CHARACTERS:,} characters")
            yield piece
    except Unfit:
        raise
    except Exception as error:  # whatever its author's code does, on data that it did not expect
        raise Unfit(f"the chat template failed: {type(error).__name__}: {' '.join(str(error).split())}") from None


@pass_context
def _counted(context: Context, iterable: Iterable[Any]) -> list[Any]:
    items = list(iterable)
    _spend(context, len(items))
    return items


def _spend(context: Context, steps: int) -> None:
    spent: list[int] = context.parent[_SPENT]
    spent[0] += steps
    if spent[0] > STEPS:
        raise Unfit(f"the chat template takes more than {STEPS:,} steps")


def _json(value: Any, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **how)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: object) -> None:
    raise Unfit(f"the chat template says: {message}")
