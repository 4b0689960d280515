"""A request on its way: its tokens, how far they are computed, and what it has made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from danlu.serve.guide import Guide
from danlu.serve.sampling import Sampling
from danlu.serve.text import TextStream

Reason = Literal["stop", "length", "cancelled", "error"]


class Output(NamedTuple):
    """What a step has made of a sequence."""

    text: str
    token: int | None
    """None: an end without a token."""
    logprob: float | None
    top: list[tuple[int, float]]
    reason: Reason | None
    """Why the sequence ends here; None: it does not."""


@dataclass(eq=False)
class Sequence:
    """Tokens of a prompt and those that follow."""

    tokens: list[int]
    prompt: int
    """How many of them were given."""
    sampling: Sampling
    ends: frozenset[int]
    """Tokens before which it stops."""
    text: TextStream
    guide: Guide | None = None
    """What the answer must follow; None: nothing."""
    computed: int = 0
    """Of how many first tokens the keys and values are in the cache."""
    table: list[int] = field(default_factory=list)
    """Its blocks of the cache."""
    cached: int = 0
    """Tokens of the prompt that were found in the cache when it was first admitted."""
    admitted: bool = False

    @property
    def due(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed
