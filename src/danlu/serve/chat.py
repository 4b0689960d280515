"""Conversations to tokens by the model's own template, in which nobody but the template can write special tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError

PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models that were not trained on conversations and come without a template."""
REPEATS = 100_000
"""Numbers that all ranges of one rendering may count together: a template from elsewhere must not loop for ever."""
CHARACTERS = 10_000_000
"""Of a rendered conversation, at most."""

Message = Mapping[str, str]


class ChatTemplate:
    """A Jinja template as Hugging Face keeps it, in a sandbox."""

    def __init__(self, tokenizer: Tokenizer, source: str | None) -> None:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.own = source is not None
        """The model brings a template of its own."""
        self._tokenizer = tokenizer
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(PLAIN if source is None else source)
        except TemplateError as error:
            raise UserError(f"the chat template cannot be read: {error}") from None
        self._special = re.compile("|".join(map(re.escape, sorted(tokenizer.specials, key=len, reverse=True))) or r"(?!)")

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the conversation, up to where the answer begins. UserError: the template does not take it."""
        from jinja2 import TemplateError

        mark = _unused(text for message in messages for text in message.values())
        safe = [{name: self._broken(text, mark) for name, text in message.items()} for message in messages]
        counted = itertools.count()
        values = {
            "messages": safe,
            "add_generation_prompt": True,
            "bos_token": self._tokenizer.begin or "",
            "eos_token": self._tokenizer.end,
            "range": lambda *bounds: _bounded(range(*bounds), counted),
        }
        try:
            text = _joined(self._template.generate(values))
        except UserError:
            raise
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise UserError(f"messages: the model's chat template does not take them: {' '.join(str(error).split())}") from None
        return self._encode(text, mark)

    def _broken(self, text: str, mark: str) -> str:
        """The text with a mark inside all that would read as a special token."""
        return self._special.sub(lambda found: found[0][0] + mark + found[0][1:], text)

    def _encode(self, text: str, mark: str) -> list[int]:
        ids: list[int] = []
        at = 0
        for found in self._special.finditer(text):
            ids += self._tokenizer.encode(text[at : found.start()].replace(mark, ""))
            ids.append(self._tokenizer.specials[found[0]])
            at = found.end()
        return ids + self._tokenizer.encode(text[at:].replace(mark, ""))


def _unused(texts: Iterable[str]) -> str:
    """A character, of those that Unicode leaves to private use, that stands in none of the texts."""
    used = set().union(*texts)
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in used)


def _bounded(numbers: range, counted: Iterable[int]) -> Iterable[int]:
    for number, total in zip(numbers, counted, strict=False):
        if total >= REPEATS:
            raise UserError("the chat template of the model loops too often")
        yield number


def _joined(pieces: Iterable[str]) -> str:
    made, size = [], 0
    for piece in pieces:
        made.append(piece)
        size += len(piece)
        if size > CHARACTERS:
            raise UserError(f"messages: the conversation is longer than {CHARACTERS:,} characters")
    return "".join(made)


def _refuse(message: Any) -> None:
    raise UserError(f"messages: {message}")
