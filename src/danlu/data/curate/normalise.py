"""One form for the same text: line ends, control characters, mojibake, Unicode, blanks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from danlu.data.curate.mojibake import repaired
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import NormaliseSection

_LINE_END = re.compile("\r\n?|\u2028|\u2029|\x85")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff\ufff9-\ufffb]")
"""Control characters, and those that no reader sees; not the joiners that Persian, Indic scripts and emoji are spelt with."""

_TRAILING = re.compile("[ \t\u3000]+\n")
_EMPTY_LINES = re.compile("\n{3,}")


@dataclass(frozen=True)
class Normalise:
    """Changes texts, rejects what nothing is left of."""

    settings: NormaliseSection
    name: str = "normalise"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        found: list[Document | Rejected] = []
        for document in documents:
            text = document.text if document.code else self.text(document.text)
            changed = document if text == document.text else document._replace(text=text)
            found.append(changed if text and not text.isspace() else Rejected(document, "nothing_left", 0))
        return found

    def text(self, text: str) -> str:
        """The text in its one form."""
        settings = self.settings
        if settings.mojibake:  # before control characters go, which may be bytes of it
            text = repaired(text)
        if settings.control_characters:
            text = _CONTROL.sub("", _LINE_END.sub("\n", text))
        if settings.unicode != "none" and not unicodedata.is_normalized(settings.unicode, text):
            text = unicodedata.normalize(settings.unicode, text)
        return _spaced(text) if settings.whitespace else text


def _spaced(text: str) -> str:
    text = text.replace("\u00a0", " ").replace("\u202f", " ")
    if " \n" in text or "\t\n" in text or "\u3000\n" in text:
        text = _TRAILING.sub("\n", text)
    if "\n\n\n" in text:
        text = _EMPTY_LINES.sub("\n\n", text)
    return text.rstrip().lstrip("\n")
