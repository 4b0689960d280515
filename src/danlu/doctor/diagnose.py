"""From evidence to findings: every rule once, then symptoms under their causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity
from danlu.doctor.rule import Rule, all_rules

FAILED = "a mistake in this rule; please report it"


@dataclass(frozen=True)
class Diagnosis:
    """What was found, the gravest first, and what could not be judged, by rule id."""

    findings: tuple[Finding, ...]
    unjudged: dict[str, str]
    silent: tuple[str, ...]
    """Rules that judged and found nothing."""

    @property
    def worst(self) -> Severity | None:
        """The highest severity; None where nothing was found."""
        return max((finding.severity for finding in self.findings), default=None)


def diagnose(evidence: Evidence, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Run the rules. Their cost is bounded by the signals' length, so a live run may call this every few dozen steps."""
    found: dict[str, Finding] = {}
    unjudged: dict[str, str] = {}
    silent: list[str] = []
    ran = tuple(rules or all_rules())
    for rule in ran:
        try:
            with np.errstate(all="ignore"):  # a logged 1e300 may overflow; what comes of it is infinite, and says so
                finding = rule.check(evidence, found)
        except NotEnoughData as missing:
            unjudged[rule.id] = str(missing)
            continue
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:  # a mistake in a rule must not end a training run
            unjudged[rule.id] = f"{FAILED}: {error!r}"
            continue
        if finding is None:
            silent.append(rule.id)
        else:
            found[rule.id] = finding
    return Diagnosis(grouped(found, {rule.id: rule.explains for rule in ran}), unjudged, tuple(silent))


def grouped(found: dict[str, Finding], explains: dict[str, frozenset[str]]) -> tuple[Finding, ...]:
    """Each symptom under the first cause that explains it; a cause is as grave as the gravest of its symptoms."""
    above = {symptom: cause for cause in reversed(found) for symptom in explains[cause] if symptom in found}

    def root(rule: str) -> str:
        while rule in above:
            rule = above[rule]
        return rule

    causes = []
    for rule, finding in found.items():
        if rule in above:
            continue
        symptoms = [other for name, other in found.items() if name != rule and root(name) == rule]
        steps = [one.step for one in (finding, *symptoms) if one.step is not None]
        severity = max([finding.severity, *(symptom.severity for symptom in symptoms)])
        first = min(steps, default=None)
        causes.append(replace(finding, severity=severity, step=first, symptoms=tuple(symptoms)))
    return tuple(sorted(causes, key=lambda one: (-one.severity, -one.confidence, one.step or 0)))
