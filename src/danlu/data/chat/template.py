"""Chat templates as Hugging Face's tokenizers carry them. The one place that says which special tokens are meant.

Those that the template writes are; what reads like one inside a message is plain text, whether it is trained on or answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from danlu.data.chat.forms import Message, Unfit
from danlu.data.tokenizer import Tokenizer, settings_beside, tokenizer_file
from danlu.errors import UserError

CHATML = "chatml"
_NAMED = {
    CHATML: "{% for turn in messages %}{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
}
PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models that were not trained on conversations and come without a template."""
_MARK = "\ufdd0"
"""Stands inside what reads as a special token while the template works; Unicode has no character there."""
_BROKEN = re.compile(f"[{_MARK}\ud800-\udfff]")


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    cuts: list[int]
    """Characters that begin a token of their own, so that what is written in a message becomes no special token."""


class Template:
    """A compiled template with the special tokens of its tokenizer. UserError: it is no Jinja."""

    def __init__(self, source: str, origin: str, tokenizer: Tokenizer, names: dict[str, str] | None = None) -> None:
        """``names``: what the template calls special tokens, such as bos_token, beyond what the tokenizer knows."""
        try:
            from jinja2 import TemplateSyntaxError

            from danlu.data.chat.sandbox import Sandbox
        except ImportError:
            raise UserError("chat templates need jinja2; install danlu with its extra `pretrained`") from None

        self.source = source
        self._tokens = {"bos_token": tokenizer.begin or "", "eos_token": tokenizer.end, **(names or {})}
        self._begins = re.compile(f"(?={'|'.join(map(re.escape, tokenizer.specials)) or '(?!)'}).", re.DOTALL)
        try:
            self._template = Sandbox().from_string(source)
        except TemplateSyntaxError as error:
            raise UserError(f"{origin}: the chat template is no Jinja (line {error.lineno}: {error.message})") from None

    def render(self, messages: Sequence[Message], answer_next: bool) -> Rendered:
        """A conversation; with ``answer_next``, up to where the assistant begins. Unfit: it has none."""
        from danlu.data.chat.sandbox import pieces

        values = {"messages": self._marked(list(messages)), "add_generation_prompt": answer_next, **self._tokens}
        parts = "".join(pieces(self._template, values)).split(_MARK)
        return Rendered("".join(parts), list(accumulate(map(len, parts[:-1]))))

    def _marked(self, value: Any) -> Any:
        """Messages with a mark behind the first character of all that reads as a special token in them."""
        if isinstance(value, dict):
            return {name: self._marked(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._marked(each) for each in value]
        if not isinstance(value, str):
            return value
        if _BROKEN.search(value):
            raise Unfit("a message holds half of a surrogate pair, or U+FDD0, which is no character")
        return self._begins.sub(rf"\g<0>{_MARK}", value)


def find(tokenizer: Tokenizer, place: Path | str) -> Template | None:
    """The template of a tokenizer's folder; None: it has none."""
    file = tokenizer_file(place)
    settings = settings_beside(file)
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((each.get("template") for each in found if isinstance(each, dict) and each.get("name") == "default"), None)
    return Template(found, str(file), tokenizer, _names(settings)) if isinstance(found, str) else None


def load(tokenizer: Tokenizer, place: Path | str, named: str | None) -> Template:
    """The template of a tokenizer's folder, or the one that ``data.chat.template`` names. UserError: there is none."""
    if not named:
        if (found := find(tokenizer, place)) is None:
            file = tokenizer_file(place)
            raise UserError(f"{file}: its tokenizer has no chat template; name one in data.chat.template, such as {CHATML}")
        return found
    names = _names(settings_beside(tokenizer_file(place)))
    if named in _NAMED:
        return Template(_NAMED[named], named, tokenizer, names)
    path = Path(named).expanduser()
    try:
        return Template(path.read_text(encoding="utf-8"), str(path), tokenizer, names)
    except (OSError, ValueError) as error:
        text = f"{path} cannot be read ({error}); name a file of Jinja, or one of: {', '.join(_NAMED)}"
        raise UserError(f"data.chat.template: {text}") from None


def _names(settings: dict[str, Any]) -> dict[str, str]:
    told = {name: settings.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    plain = {name: it.get("content") if isinstance(it, dict) else it for name, it in told.items()}
    return {name: it for name, it in plain.items() if isinstance(it, str)}
