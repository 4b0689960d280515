"""What the memory meter found, for a person."""

from __future__ import annotations

from danlu.engines.base import MEMORY_KINDS
from danlu.watch.format import bytes_text


def memory_text(ranks: list[dict[str, int]]) -> str:
    """The fullest process's peak and what it consists of, from what `Engine.metered_step` returns."""
    number, most = max(enumerate(ranks), key=lambda rank: rank[1]["peak"])
    parts = ", ".join(f"{kind} {bytes_text(most[f'peak_{kind}'])}" for kind in MEMORY_KINDS if most[f"peak_{kind}"])
    where = f" of process {number}" if len(ranks) > 1 else ""
    offloaded = f"; {bytes_text(most['offloaded'])} offloaded" if most["offloaded"] else ""
    return f"memory{where} at its peak: {bytes_text(most['peak'])}, of which {parts}{offloaded}"
