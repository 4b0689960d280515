"""The doctor beside a run: values come in step by step, and it is asked every few dozen steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from danlu.doctor.diagnose import Diagnosis, diagnose
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Finding, Severity
from danlu.doctor.series import Series

POINTS = 8192
"""Points of a signal that are kept; of the older half every second goes when there are more, which bounds the cost."""

SHARE = 0.004
"""Of the run's time that diagnoses may take, unless the recipe says otherwise."""


class Live:
    """Evidence that grows. Not for several threads at once."""

    def __init__(
        self,
        facts: Mapping[str, Any] | None = None,
        memory_limits: Mapping[str, float] | None = None,
        history: Mapping[str, Series] | None = None,
        resumes: Sequence[int] = (),
        share: float = SHARE,
    ) -> None:
        """`history` and `resumes` are what a resumed run recorded before; `share` of the time is the most to be taken."""
        self.facts, self.memory_limits, self.resumes = dict(facts or {}), dict(memory_limits or {}), list(resumes)
        before = {name: thinned(one) for name, one in (history or {}).items()}
        self._steps: dict[str, list[int]] = {name: one.steps.tolist() for name, one in before.items()}
        self._values: dict[str, list[float]] = {name: one.values.tolist() for name, one in before.items()}
        self._ended, self._cost = -math.inf, 0.0
        self._share = share
        self.told: dict[str, Severity] = {}
        """How grave each finding was that was told."""
        self.last: Diagnosis | None = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take what was measured at a step; steps rise."""
        for name, value in values.items():
            steps, kept = self._steps.setdefault(name, []), self._values.setdefault(name, [])
            steps.append(step)
            kept.append(value)
            if len(steps) > POINTS:
                half = POINTS // 2
                steps[:half], kept[:half] = steps[:half:2], kept[:half:2]

    @property
    def last_step(self) -> int:
        """The newest that was added; 0: none."""
        return max((steps[-1] for steps in self._steps.values() if steps), default=0)

    def evidence(self) -> Evidence:
        """All there is so far."""
        signals = {
            name: Series(np.array(steps, dtype=np.int64), np.array(self._values[name])) for name, steps in self._steps.items()
        }
        return Evidence(signals, self.facts, tuple(self.resumes), own=True, memory_limits=self.memory_limits)

    def diagnose(self) -> Diagnosis:
        """What is to be said of the run now."""
        return diagnose(self.evidence())

    @property
    def due(self) -> bool:
        """Whether so much time has passed since the last diagnosis that another costs less than its share of it."""
        return self._share == 1 or time.monotonic() - self._ended >= self._cost / self._share

    def news(self) -> list[Finding]:
        """Findings that were not told before, or that have become graver."""
        start = time.monotonic()
        found = self.last = self.diagnose()
        self._ended = time.monotonic()
        self._cost = self._ended - start
        fresh = [one for one in found.findings if one.severity > self.told.get(one.rule, Severity.INFO - 1)]
        self.told.update({one.rule: one.severity for one in fresh})
        return fresh


def thinned(one: Series) -> Series:
    """POINTS of it at most: the newer half of them in a row, the others spread evenly over what was before."""
    newest = POINTS // 2
    older = len(one) - newest
    if older <= newest:
        return one
    kept = np.r_[0 : older : -(-older // newest), older : len(one)]
    return Series(one.steps[kept], one.values[kept])
