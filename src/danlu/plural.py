"""Counted things in words."""

from __future__ import annotations


def many(number: int, thing: str) -> str:
    """``1 step``, ``1,916 steps``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
