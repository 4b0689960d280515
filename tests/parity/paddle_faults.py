"""As faults.py, for the paddle engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Plant = Callable[[], AbstractContextManager[Any]]

FAULTS: dict[str, tuple[str, Plant]] = {}
"""What is wrong: the case that is trained, and how to plant it."""
