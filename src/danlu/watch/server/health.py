"""The doctor's word on a run, kept until there is reason and time to ask again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from danlu.errors import DanluError
from danlu.watch.server.runs import Run
from danlu.watch.signals import FIRST_SIGHT_SECONDS

SHARE = 0.05
"""Of the time that diagnoses may take: the next one waits as long as the last one asks for."""
LEAST_SECONDS = 10.0


class Health:
    """One diagnosis at a time, in a thread of its own; the page is told the newest, and of which step it is."""

    def __init__(self, diagnose: Callable[[Path], dict[str, Any]]) -> None:
        self._diagnose = diagnose
        self._known: dict[str, dict[str, Any]] = {}
        self._due: dict[str, float] = {}
        self._busy = threading.Lock()

    def of(self, run: Run) -> dict[str, Any]:
        """`state`: pending, ready or failed; `step` of which it tells; and, once ready, the diagnosis."""
        step = run.state().get("step")
        known = self._known.get(run.id)
        stale = known is None or known["step"] != step
        if stale and time.monotonic() >= self._due.get(run.id, 0.0) and self._busy.acquire(blocking=False):
            threading.Thread(target=self._ask, args=(run, step), name="danlu-doctor", daemon=True).start()
        return {**(known or {"state": "pending", "step": None}), "newest_step": step, "current": not stale}

    def _ask(self, run: Run, step: int | None) -> None:
        time.sleep(FIRST_SIGHT_SECONDS)  # the curves of a page that opens go first
        began = time.monotonic()
        try:
            self._known[run.id] = {"state": "ready", "step": step, **self._diagnose(run.folder)}
        except DanluError as error:
            self._known[run.id] = {"state": "failed", "step": step, "error": str(error)}
        except Exception as error:  # a mistake of the doctor's must not leave the page waiting
            self._known[run.id] = {"state": "failed", "step": step, "error": f"{type(error).__name__}: {error}"}
        finally:
            spent = time.monotonic() - began
            self._due[run.id] = time.monotonic() + max(LEAST_SECONDS, spent / SHARE)
            self._busy.release()
