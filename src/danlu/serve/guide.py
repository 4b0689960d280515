"""Answers that follow a JSON schema: before each draw, the tokens that cannot go on with it are left out (llguidance)."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np

from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.serve.executor import Logits

LONGEST = 1 << 16
"""Characters of a schema."""
COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write blanks: where any are allowed, a small model may write nothing else."""


class Dead(Exception):
    """The schema is too costly to follow from here."""


class Guide:
    """Where one answer is in its schema."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def copy(self) -> Guide:
        """For another answer that begins here."""
        return Guide(self._matcher.deep_copy(), self._vocab_size)

    def masked(self, logits_v: Logits) -> Logits:
        """The logits with minus infinity for what cannot come next. Dead: that cannot be told."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(len(logits_v), bool)
        found = np.unpackbits(bits, bitorder="little", count=min(8 * len(bits), self._vocab_size)).astype(bool)
        allowed[: len(found)] = found
        if self._matcher.is_error() or not allowed.any():
            raise Dead(self._matcher.get_error())
        return np.where(allowed, logits_v, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """The answer goes on with this token."""
        self._matcher.consume_token(token)


class Guides:
    """Makes guides for the answers of one model. What they share is made when the first is asked for."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: frozenset[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, ends
        self._known: Any = None
        self._making = threading.Lock()

    def make(self, schema: dict[str, Any]) -> Guide:
        """For one answer. UserError: the schema is none, has what cannot be followed, or llguidance is not installed."""
        try:
            from llguidance import LLMatcher
        except ImportError:
            raise UserError("response_format: needs llguidance; install danlu with its extra `guided`") from None
        text = json.dumps(schema)
        if len(text) > LONGEST:
            raise UserError(f"response_format: the schema has more than {LONGEST:,} characters")
        try:
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=COMPACT)
        except ValueError as error:
            raise UserError(f"response_format: {_first_line(error)}") from None
        matcher = LLMatcher(self._shared(), grammar, log_level=0)
        if matcher.is_error():
            raise UserError(f"response_format: {_first_line(matcher.get_error())}")
        return Guide(matcher, self._vocab_size)

    def _shared(self) -> Any:
        from llguidance import LLTokenizer

        with self._making:
            if self._known is None:
                try:
                    definition = self._tokenizer.data.decode("utf-8")
                    self._known = LLTokenizer(definition, n_vocab=self._vocab_size, eos_token=sorted(self._ends))
                except ValueError as error:
                    raise UserError(f"response_format: not with the tokenizer of this model: {_first_line(error)}") from None
            return self._known


def _first_line(error: object) -> str:
    return next(iter(str(error).splitlines()), "it cannot be followed")
