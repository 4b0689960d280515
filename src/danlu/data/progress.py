"""Lines that say how far the reading is."""

from __future__ import annotations

import time
from collections.abc import Callable

from danlu.data.ledger import Ledger

EVERY = 3.0
"""Seconds between lines."""


def amount(size: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


class Progress:
    """Documents, speed, bad records and the time left, every few seconds."""

    def __init__(self, report: Callable[[str], None], ledger: Ledger, total: int) -> None:
        self._report, self._ledger, self._total = report, ledger, total
        self._began = self._last = time.monotonic()

    def show(self) -> None:
        """Report a line when it is time for one."""
        now = time.monotonic()
        if now - self._last < EVERY:
            return
        self._last = now
        ledger, seconds = self._ledger, now - self._began
        share = ledger.position() / max(1, self._total)
        left = f", {seconds / share - seconds:.0f} s left" if 0 < share < 1 else ""
        self._report(
            f"tokenising: {min(share, 1):.0%}, {ledger.documents:,} documents, {amount(ledger.text_bytes)}, "
            f"{amount(ledger.text_bytes / seconds)}/s, {ledger.bad:,} bad{left}"
        )
