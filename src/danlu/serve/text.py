"""Tokens to text as they come: no piece ends inside a character, and none holds what may become a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.data.tokenizer import Tokenizer

CONTEXT = 8
"""Tokens before a new one that are decoded with it: enough to hold a whole character, and the blank that some tokenizers take
off the beginning of a text."""
CHARACTER = 4
"""Bytes of the longest character: so many tokens without a whole one are no character at all."""
HALF = "\ufffd"


class TextStream:
    """The text of one sequence's new tokens."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        """A stop string has come; the text ends before it."""
        self._tokenizer, self._stop = tokenizer, [each for each in stop if each]
        self._window = list(before[-CONTEXT:])
        self._shown = self._decode()
        self._pending = 0
        self._held = ""
        """Decoded, but perhaps the beginning of a stop string."""

    def push(self, token: int) -> str:
        """The text that can be shown now that this token has come."""
        self._window.append(token)
        text = self._decode()
        self._pending += 1
        if text.endswith(HALF) and self._pending < CHARACTER:
            return ""
        new = text[len(self._shown) :]
        self._pending = 0
        self._window = self._window[-CONTEXT:]
        self._shown = self._decode()
        return self._unless_stopped(new)

    def finish(self) -> str:
        """What was held back when the tokens end; half a character is left out."""
        new = self._decode()[len(self._shown) :].rstrip(HALF) if self._pending else ""
        shown = self._unless_stopped(new)
        return shown if self.stopped else shown + self._held

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=True)

    def _unless_stopped(self, new: str) -> str:
        text = self._held + new
        found = [at for each in self._stop if (at := text.find(each)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, each) for each in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that are the beginning of the stop string."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
