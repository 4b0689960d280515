"""How this process uses the memory and the cores of its machine. Imports nothing, so that it can act before torch is loaded."""

from __future__ import annotations

import ctypes
import os
import sys

SPINS = 5000
"""Some microseconds: longer than the usual gap between two parallel loops, shorter than the turn of another process."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def yield_idle_cores() -> None:
    """Let threads that wait for each other sleep soon rather than spin; to be called before torch is imported.

    OpenMP's threads spin at the end of every parallel loop. When another process wants the same cores, each spins through the
    time in which the thread that it waits for could have run: two trainings on two cores took six times as long together as
    with this setting, which costs a training that is alone nothing that could be measured (going to sleep at once costs a
    tenth). A value that the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def keep_freed_memory() -> None:
    """Tell glibc to serve large buffers from the heap and not to shrink it; elsewhere than on glibc, leave all as it is.

    glibc gives every buffer above 128 KB to the kernel and back again. A training step on a CPU allocates and frees gigabytes of
    them, and the kernel zeroes each page on first touch: about a quarter of the step at a 42 M shape.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
