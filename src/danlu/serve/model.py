"""A model that is ready to answer: what computes it, its tokenizer, its chat template, and where it stops."""

from __future__ import annotations

from dataclasses import dataclass

from danlu.data.chat.forms import Message, Unfit
from danlu.data.chat.template import Template
from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.serve.guide import Guide
from danlu.serve.sampling import Sampling
from danlu.serve.sequence import Sequence
from danlu.serve.text import TextStream


@dataclass(frozen=True)
class Model:
    """What requests are made of."""

    name: str
    tokenizer: Tokenizer
    chat: Template
    ends: frozenset[int]

    def prompt(self, text: str) -> list[int]:
        """Tokens of a text to continue, as in training: behind the token that begins a document.

        Where there is none, an empty text begins behind the one that ends a document, as GPT-2 has it. UserError: no UTF-8.
        """
        begin = self.tokenizer.begin_id
        ids = self.tokenizer.encode(text)
        return [begin, *ids] if begin is not None else ids or [self.tokenizer.end_id]

    def conversation(self, messages: list[Message]) -> list[int]:
        """Tokens of a conversation up to where the answer begins. UserError: the chat template does not take it."""
        try:
            rendered = self.chat.render(messages, answer_next=True)
        except Unfit as fault:
            raise UserError(f"messages: {fault}") from None
        ids: list[int] = self.tokenizer.encode_markup(*rendered)[0].tolist()
        return ids

    def sequence(self, tokens: list[int], sampling: Sampling, guide: Guide | None = None) -> Sequence:
        """A sequence for an engine."""
        text = TextStream(self.tokenizer, tokens, sampling.stop)
        return Sequence(list(tokens), len(tokens), sampling, self.ends, text, guide)
