"""What the doctor says: one finding a cause, whatever kind of evidence it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from danlu.doctor.series import Series


class Text(NamedTuple):
    """The same words in both languages."""

    en: str
    zh: str


class Severity(IntEnum):
    """How much it matters: worth knowing, costs quality or time, or ruins the run."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2


class Chart(NamedTuple):
    """A signal to draw beside the evidence."""

    name: str
    series: Series


@dataclass(frozen=True)
class Finding:
    """One cause. Curves, invariants in the loop and audits before step 0 all speak in this form; what has no step has None."""

    rule: str
    severity: Severity
    confidence: float
    """Between 0 and 1: how far the evidence rules out the other explanations."""
    verdict: Text
    why: tuple[Text, ...]
    """The measured evidence, with steps and figures."""
    next: Text
    patch: Mapping[str, Any] = field(default_factory=dict)
    """Dotted recipe fields and their new values; empty where no value follows from the evidence."""
    considered: tuple[Text, ...] = ()
    """Other causes that were thought of, and what speaks for or against them."""
    step: int | None = None
    """First step at which it can be seen."""
    chart: Chart | None = None
    symptoms: tuple[Finding, ...] = ()
    """Findings that this cause explains, and that therefore are none of their own."""
