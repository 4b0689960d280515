"""What a stage of curation is: it gets documents, and gives each back, perhaps changed, or says why not.

A new stage is a class with a `name` and an `apply` in a file of its own, and a line where `stages.py` of this folder lists
them. It must be picklable, depend on nothing but the documents it is given (so that any number of processes in any order
gives the same result), and load what it needs (word lists, a model) when `apply` is first called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from danlu.data.read import Document


class Rejected(NamedTuple):
    """A document that a rule turned down."""

    document: Document
    rule: str
    """Name of the rule, unique within the stage."""
    value: float | str
    """What was measured, to stand beside the rule's limit."""
    soft: bool = False
    """Whether noise control may bring it back; never for toxic, duplicate or contaminated text."""


class Judged(NamedTuple):
    """A document that no stage turned down for good."""

    document: Document
    before: str
    """Its text when it was read."""
    failed: tuple[str, Rejected] | None = None
    """The first stage that turned it down softly, and what it said; it stays among the rest for noise control to choose from."""


class Stage(Protocol):
    """One step of curation."""

    @property
    def name(self) -> str:
        """What rejections and reports call it."""

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        """One entry for each document, in order: the document (with another text, score or language if need be), or why not."""
