"""Fleet on CPUs: what stands in for the parts of it that only work with GPUs, so that a layout can be rehearsed on a laptop.

Only where tensors travel is replaced, never what is computed.
"""

from __future__ import annotations


def begin() -> None:
    """Put the substitutes into Fleet, once."""
