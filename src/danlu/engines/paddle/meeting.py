"""The store in which processes of the paddle engine meet."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from paddle.base import core

from danlu.engines.meeting import Store
from danlu.engines.paddle.layout import tell_paddle

_POLL_SECONDS = 0.02


class _Counting:
    """Paddle's store, with a count beside each value, by which it is known whether that is there."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def set(self, key: str, value: str) -> None:
        self.store.set(f"danlu/{key}", value)
        self.store.add(f"danlu/{key}/there", 1)

    def get(self, key: str) -> bytes:
        value: bytes = self.store.get(f"danlu/{key}")
        return value

    def check(self, keys: list[str]) -> bool:
        return all(self.store.add(f"danlu/{key}/there", 0) > 0 for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        until = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise TimeoutError(f"no rank has said {', '.join(keys)} within {timeout.total_seconds():g} seconds")
            time.sleep(_POLL_SECONDS)


def store() -> Store:
    """The one that Fleet meets in later, served by the first rank."""
    tell_paddle()
    return _Counting(core.create_or_get_global_tcp_store())
