"""What a rule is, and where rules are found: every module in danlu.doctor.rules that has a RULE."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from danlu.doctor import rules as package
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity, Text

Found = Mapping[str, Finding]
"""What the rules that ran before have found, by rule id."""


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong. The texts make up the rules table in docs/."""

    id: str
    catches: Text
    needs: tuple[str, ...]
    """Signals without which it cannot judge; alternatives are joined by `|`."""
    threshold: str
    origin: str
    """Where the threshold comes from: a paper, a definition, robust statistics, a measured noise."""
    cost: str
    severity: Severity
    """The highest it gives."""
    check: Callable[[Evidence, Found], Finding | None]
    """Raises NotEnoughData where it cannot judge."""
    explains: frozenset[str] = frozenset()
    """Rules whose findings are symptoms of this one; they run before it."""
    reads: frozenset[str] = frozenset()
    """Rules whose findings speak against this one; they too run before it."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, ahead of those that read what it finds, otherwise by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    waiting = {}
    for name in names:
        rule = importlib.import_module(f"{package.__name__}.{name}").RULE
        waiting[rule.id] = rule
    ordered: list[Rule] = []
    while waiting:
        ready = [rule for rule in waiting.values() if not (rule.explains | rule.reads) & waiting.keys()]
        if not ready:
            raise AssertionError(f"rules read each other in a circle: {sorted(waiting)}")
        ordered += ready
        for rule in ready:
            del waiting[rule.id]
    return tuple(ordered)
