"""Which side of the validation split a document falls on: a function of its text alone."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Place(NamedTuple):
    """Two independent numbers, uniform over texts, in [0, 1)."""

    split: float
    """Below data.validation_fraction: the document is held out."""
    weight: float
    """Below the fraction of a source's weight: the document is in the last, partial pass."""


def place(text: str) -> Place:
    """The place of a text. The same text has the same place in every run, whatever the sources around it.

    So the held-out documents stay held out when sources grow, and copies of a text never straddle the split.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16, person=b"danlu split").digest()
    return Place(_unit(digest[:8]), _unit(digest[8:]))


def _unit(eight: bytes) -> float:
    return (int.from_bytes(eight, "little") >> 11) * 2.0**-53
