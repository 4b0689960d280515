"""What computes: the one thing that differs between float32, INT8, CPU and GPU. Everything else here knows only this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK = 16
"""Tokens of a block of the key/value cache."""

CacheType = Literal["float32", "int8"]
"""How keys and values are kept."""

Logits = NDArray[np.float32]


class Piece(NamedTuple):
    """Consecutive tokens of one sequence that are computed in this step: one when it decodes, more of a prompt."""

    tokens: list[int]
    start: int
    """Position of the first one; all before it are in the cache."""
    table: list[int]
    """Blocks of the sequence in order; they have room for these tokens too."""
    logits: int
    """Of how many last tokens the logits are wanted."""


class Executor(Protocol):
    """A model with the keys and values of its sequences in blocks of `BLOCK` tokens.

    What it computes for a token depends on that token and those before it alone: not on what else is in the step, and not on
    where a prompt was cut.
    """

    blocks: int
    """Of the cache."""
    vocab_size: int
    context: int
    """Positions that the model is made for."""

    def run(self, pieces: Sequence[Piece]) -> Logits:
        """Compute these pieces, of a sequence each, and return the wanted logits (rows, v) in their order."""

    def copy(self, source: int, target: int) -> None:
        """Copy a block of the cache in all layers."""
