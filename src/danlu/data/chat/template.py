"""Chat templates: Jinja as Hugging Face's tokenizers carry it, run in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from danlu.data.tokenizer import settings_beside, tokenizer_file
from danlu.errors import UserError

CHATML = "chatml"
_NAMED = {
    CHATML: "{% for turn in messages %}{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
}
LONGEST = 16 << 20
"""Characters after which a template that goes on and on is stopped."""
REPEATS = 1_000_000
"""Numbers that all ranges of one rendering may count together."""
Message = dict[str, Any]


class TemplateFault(Exception):
    """A template cannot render a conversation; the text says why."""


class Template:
    """A compiled template and the special tokens that it may name. UserError: it is no Jinja."""

    def __init__(self, source: str, origin: str, tokens: dict[str, str | None]) -> None:
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
        self.source, self._tokens = source, {name: token or "" for name, token in tokens.items()}
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UserError(f"{origin}: the chat template is no Jinja (line {error.lineno}: {error.message})") from None

    def render(self, messages: list[Message], answer_next: bool) -> str:
        """The text of a conversation; with ``answer_next``, up to where the assistant begins. TemplateFault: it has none."""
        parts, size = [], 0
        counted = _Counted()
        try:
            values = {"messages": messages, "add_generation_prompt": answer_next, "range": counted.range, **self._tokens}
            for part in self._template.generate(values):
                parts.append(part)
                size += len(part)
                if size > LONGEST:
                    raise TemplateFault(f"the chat template made more than {LONGEST:,} characters")
        except TemplateFault:
            raise
        except Exception as error:  # whatever its author's code does, on data that it did not expect
            raise TemplateFault(f"the chat template failed: {type(error).__name__}: {error}") from None
        return "".join(parts)


class _Counted:
    """Ranges of one rendering: a template from elsewhere must not loop for ever."""

    def __init__(self) -> None:
        self._count = 0

    def range(self, *bounds: int) -> range:
        made = range(*bounds)
        self._count += len(made)
        if self._count > REPEATS:
            raise TemplateFault(f"the chat template counts beyond {REPEATS:,}")
        return made


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: object) -> None:
    raise TemplateFault(f"the chat template says: {message}")


def load(tokenizer: Path | str, named: str | None) -> Template:
    """The template of a tokenizer's folder, or the one that ``data.chat.template`` names. UserError: there is none."""
    file = tokenizer_file(tokenizer)
    settings = settings_beside(file)
    tokens = {name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    if named is not None and named in _NAMED:
        return Template(_NAMED[named], named, tokens)
    if named:
        path = Path(named).expanduser()
        try:
            return Template(path.read_text(encoding="utf-8"), str(path), tokens)
        except (OSError, ValueError) as error:
            text = f"{path} cannot be read ({error}); name a file of Jinja, or one of: {', '.join(_NAMED)}"
            raise UserError(f"data.chat.template: {text}") from None
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    if not isinstance(found, str):
        raise UserError(f"{file}: its tokenizer has no chat template; name one in data.chat.template, such as {CHATML}")
    return Template(found, str(file), tokens)


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
