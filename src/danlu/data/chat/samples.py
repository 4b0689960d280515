"""A conversation as tokens, and which of them the model is to learn to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.chat.forms import Message, Told, Unfit, conversation
from danlu.data.chat.template import Rendered, Template
from danlu.data.tokenizer import Tokenizer

Spans = list[tuple[int, int]]
"""Parts of a text, in characters."""


class Sample(NamedTuple):
    """Tokens (n,) uint32, and for each whether it is supervised, (n,) bool."""

    text: str
    ids: Array
    supervised: Array
    cut: bool
    """Whether it was longer than a sample may be."""


def single(record: Any) -> list[Told]:
    """The conversation of a record that holds one."""
    return [conversation(record)]


class Sampler:
    """Makes samples of at most ``longest`` tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        everything: bool,
        longest: int,
        told: Callable[[Any], Sequence[Told]] = single,
    ) -> None:
        """With ``everything``, all tokens are supervised, and not the answers alone. ``told``: the conversations of a record."""
        self._tokenizer, self._template, self._everything, self._longest = tokenizer, template, everything, longest
        self._told = told

    def samples(self, record: Any) -> tuple[Sample, ...]:
        """One for each conversation of a record. Unfit: it has none, or two that are the same as far as they are kept."""
        made = tuple(self.sample(told) for told in self._told(record))
        for one, other in pairwise(made):
            if np.array_equal(one.ids, other.ids):
                raise Unfit("both answers are the same" + (", as far as data.sequence_length leaves them" if one.cut else ""))
        return made

    def sample(self, told: Told) -> Sample:
        """Unfit: the template cannot render it, or no supervised token is among the first that are kept."""
        if isinstance(told, tuple):
            (text, cuts), spans = Rendered("".join(told), []), [(len(told[0]), len("".join(told)))]
        else:
            (text, cuts), spans = self._rendered(told)
        # Cut where an answer begins too: the model will see what is before that without the answer.
        answers = [start for start, _ in spans] if self._tokenizer.cuttable else []
        ids, offsets = self._tokenizer.encode_markup(text, [*cuts, *answers])
        supervised = np.zeros(len(ids), bool)
        for start, stop in spans:
            supervised |= (offsets[:, 1] > start) & (offsets[:, 1] <= stop)
        if spans[-1][1] == len(text) and (not len(ids) or ids[-1] != self._tokenizer.end_id):
            # A template without a token that ends a turn, or no template: what ends a document does it.
            ids, supervised = np.append(ids, np.uint32(self._tokenizer.end_id)), np.append(supervised, True)
        if self._everything:
            supervised[:] = True
        kept = supervised[: self._longest]
        if not kept[1:].any():  # nothing predicts the first token
            raise Unfit(f"no token of an answer is among the first {self._longest:,}, which data.sequence_length leaves")
        return Sample(text, ids[: self._longest], kept, len(ids) > self._longest)

    def _rendered(self, messages: list[Message]) -> tuple[Rendered, Spans]:
        """A conversation as text, and in it the answers with what ends each turn."""
        whole = self._template.render(messages, answer_next=False)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._template.render(messages[:number], answer_next=True)
            after = self._template.render(messages[: number + 1], answer_next=False)
            if not (after.text.startswith(before.text) and whole.text.startswith(after.text)):
                # It changes an earlier turn in view of a later one: only the last answer is said as it would be said.
                if number < len(messages) - 1:
                    continue
                raise Unfit("the chat template renders an answer otherwise than it begins one; name another")
            spans.append((len(before.text), self._end_of_turn(after, len(before.text))))
        if not spans:
            raise Unfit("the chat template renders no answer as it would be said")
        return whole, spans

    def _end_of_turn(self, told: Rendered, start: int) -> int:
        """Behind the token that ends the turn; what a template puts behind it, such as a line end, nobody says."""
        at = told.text.rfind(self._tokenizer.end, start)
        return len(told.text) if at < 0 or at + 1 in told.cuts else at + len(self._tokenizer.end)
