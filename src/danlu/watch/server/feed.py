"""What changed in which run, as server-sent events that a page can take up again where it left off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool

from danlu.watch.server.runs import Runs

POLL_SECONDS = 0.4
QUIET_SECONDS = 15.0
"""After so long without news a comment is sent, by which both sides see that the line stands."""


class Feed:
    """One look at all runs for all pages. Every change gets a number; who knows a number is told what came after it.

    What is sent of a run is its whole short state, so that nothing is lost to a page that slept: the curves themselves are
    always asked for anew.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.began = int(time.time() * 1000)
        """Numbers of an earlier server mean nothing to this one."""
        self.number = 0
        self.states: dict[str, tuple[int, dict[str, Any]]] = {}
        self._news = asyncio.Condition()

    async def watch(self) -> None:
        """Look for changes for as long as the server runs."""
        while True:
            states = await run_in_threadpool(lambda: {run.id: run.state() for run in self.runs.all()})
            async with self._news:
                changed = [name for name, state in states.items() if name not in self.states or self.states[name][1] != state]
                gone = self.states.keys() - states.keys()
                if changed or gone:
                    self.number += 1
                    self.states = {name: entry for name, entry in self.states.items() if name in states}
                    self.states.update({name: (self.number, states[name]) for name in changed})
                    self._news.notify_all()
            await asyncio.sleep(POLL_SECONDS)

    async def events(self, last_id: str) -> AsyncIterator[str]:
        """Server-sent events from the one after ``last_id`` on; all there is, where that is not known here."""
        began, _, number = last_id.partition("-")
        known = int(number) if began == str(self.began) and number.isascii() and number.isdigit() and len(number) < 16 else 0
        yield "retry: 1000\n\n"
        while True:
            news = [state for at, state in self.states.values() if at > known]
            if news or known != self.number:
                known = self.number
                message = {"runs": news, "ids": list(self.states), "now": time.time()}
                yield f"id: {self.began}-{known}\nevent: runs\ndata: {json.dumps(message)}\n\n"
            try:
                async with self._news:
                    await asyncio.wait_for(self._news.wait_for(lambda: self.number != known), QUIET_SECONDS)  # noqa: B023
            except TimeoutError:
                yield ": quiet\n\n"
