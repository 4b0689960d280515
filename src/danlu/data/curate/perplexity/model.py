"""A model of good texts, its training and its file: how many ways a text might go on, in the mean, at each byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.linear.fit import HELD_OUT, LEAST, place
from danlu.data.curate.linear.model import characters
from danlu.data.dedup.fold import table as folds
from danlu.errors import UserError

FORMAT = "danlu-ngrams-1"
LEAST_BITS, MOST_BITS = 14, 22
"""Of the number of rows, 8 bytes each; millions of characters of text need the most."""
_AGAIN = "make one with danlu data train-scorer --perplexity"


@dataclass(frozen=True)
class Ngrams:
    """Counts of n-grams of characters."""

    table: Array
    """(a power of two, 2) uint32, as in kernels.py."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What it was trained on, and the perplexity of texts that were held out."""

    def perplexities(self, texts: Sequence[str]) -> Array:
        """exp of the mean surprise of a byte of UTF-8, (texts,) float64 from 1; so that scripts can be compared.

        The first LONGEST characters of each count; an empty text has 1.
        """
        from danlu.data.curate.perplexity import kernels

        codes, ends = characters(texts)
        nats = np.zeros(len(texts))
        kernels.surprise(codes, ends, folds(), len(self.table).bit_length() - 1, self.table, nats)
        found: Array = np.exp(nats)
        return found

    def save(self, path: Path) -> None:
        """Write `path`, as safetensors."""
        from safetensors.numpy import save_file

        save_file({"table": self.table}, str(path), metadata={"format": FORMAT, "facts": json.dumps(self.facts)})

    @classmethod
    def load(cls, path: Path) -> Ngrams:
        """Read a file that `save` wrote.

        Raises:
            UserError: it is not there, is damaged, or is something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise UserError(f"{path}: is no model of perplexity; {_AGAIN}")
                table, facts = file.get_tensor("table"), json.loads(metadata["facts"])
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise UserError(f"{path}: no model of perplexity that can be read: {error}; {_AGAIN}") from None
        if table.ndim != 2 or table.shape[1] != 2 or len(table) < 2 or len(table) & (len(table) - 1) or table.dtype != np.uint32:
            raise UserError(f"{path}: its table is {table.shape} of {table.dtype}; {_AGAIN}")
        return cls(table, facts)


def fit(texts: Sequence[str]) -> Ngrams:
    """Count the n-grams of four fifths of the texts, chosen by a hash of each; the rest says what perplexity is to be expected.

    Copies count once. The same texts give the same model, in any order.

    Raises:
        UserError: there are fewer than LEAST different texts.
    """
    from danlu.data.curate.perplexity import kernels

    once = sorted(set(texts))
    if len(once) < LEAST:
        raise UserError(f"{len(once)} different texts; at least {LEAST} are needed, and thousands are better")
    held_out = [text for text in once if place(text) < HELD_OUT]
    learnt = [text for text in once if place(text) >= HELD_OUT]
    codes, ends = characters(learnt)
    bits = min(max(len(codes).bit_length(), LEAST_BITS), MOST_BITS)
    table = np.zeros((1 << bits, 2), np.uint32)
    kernels.count(codes, ends, folds(), bits, table)
    facts: dict[str, Any] = {"texts": len(once), "trained": len(learnt), "held_out": len(held_out)}
    facts["rows_used"] = round(float((table[:, 0] > 0).mean()), 4)
    if held_out:
        found = np.percentile(Ngrams(table).perplexities(held_out), [50, 90, 99])
        facts |= {f"perplexity_{share}": round(float(one), 4) for share, one in zip((50, 90, 99), found, strict=True)}
    return Ngrams(table, facts)
