"""Keep freed memory in the process on a CPU, so that every step does not fault its pages in anew.

glibc gives every buffer above 128 KB to the kernel and back again. A training step allocates and frees gigabytes of them, and
the kernel zeroes each page on first touch: a quarter of the step time at a 42 M shape (benchmarks/train_throughput.py).
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Tell glibc to serve large buffers from the heap and not to shrink it; elsewhere than on glibc, leave all as it is."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
