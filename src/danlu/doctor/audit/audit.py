"""What an audit is, where audits are found, and how they are asked."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from danlu.doctor.audit import checks as package
from danlu.doctor.audit.material import AT_START, Material
from danlu.doctor.diagnose import FAILED, Diagnosis, grouped
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.errors import UserError

AUDITS = Text("audits", "项检查")


@dataclass(frozen=True)
class Audit:
    """One thing that can be wrong before the first step. The texts make up the table of audits in docs/."""

    id: str
    catches: Text
    needs: str
    """Without which it cannot judge."""
    threshold: str
    origin: str
    """Where the threshold comes from."""
    severity: Severity
    """The highest it gives."""
    check: Callable[[Material], Finding | None]
    """Raises NotEnoughData where it cannot judge."""
    at_start: bool = False
    """Whether it is so cheap that training asks it ahead of the first step."""
    explains: frozenset[str] = frozenset()
    """Audits whose findings are symptoms of this one's."""


@cache
def all_audits() -> tuple[Audit, ...]:
    """Every audit, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(importlib.import_module(f"{package.__name__}.{name}").AUDIT for name in names)


def audited_at_start(material: Material) -> Diagnosis:
    """Ask those that come ahead of every training, of as much data as that may cost."""
    return audited(replace(material, tokens=AT_START), [audit for audit in all_audits() if audit.at_start])


def audited(material: Material, audits: Iterable[Audit] | None = None) -> Diagnosis:
    """Ask the audits. What one of them lacks or does wrong ends neither the others nor the training that asked."""
    found: dict[str, Finding] = {}
    unjudged: dict[str, str] = {}
    silent: list[str] = []
    asked = all_audits() if audits is None else tuple(audits)
    for audit in asked:
        try:
            finding = audit.check(material)
        except (NotEnoughData, UserError) as missing:
            unjudged[audit.id] = str(missing)
        except ImportError as missing:
            unjudged[audit.id] = f"the package {missing.name} is not installed"
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            unjudged[audit.id] = FAILED.replace("rule", "audit") + f": {error!r}"
        else:
            if finding is None:
                silent.append(audit.id)
            else:
                found[audit.id] = finding
    return Diagnosis(grouped(found, {audit.id: audit.explains for audit in asked}), unjudged, tuple(silent))
