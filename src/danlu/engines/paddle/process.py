"""How this process uses the memory and the cores of its machine, and how paddle is loaded such that it keeps to that."""

from __future__ import annotations

import ctypes
import io
import os
import sys
import warnings
from contextlib import redirect_stderr, suppress
from pathlib import Path

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_THREADS = "FLAGS_paddle_num_threads"


def load() -> None:
    """Import paddle with as many threads as the user or the launcher has set, else with one for each core.

    Paddle's own default is a single one, and it warns of any other number. It also tells of compilers that only those need who
    build extensions for it.
    """
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    )
    os.environ.setdefault(_THREADS, os.environ["OMP_NUM_THREADS"])
    if (kernels := _kernels()) is not None:
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", kernels)
    os.environ.setdefault("GLOG_minloglevel", "2")  # warnings of its C++ part
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import paddle  # noqa: F401


def _kernels() -> str | None:
    """Which of MKL's kernels the processor can run, where MKL would not look; None: MKL chooses well by itself, or unknown.

    Paddle's wheel brings the MKL of 2019, which gives processors of other makers than Intel its oldest kernels: on an AMD EPYC
    matrix products were a fifth as fast as with those for AVX-512. This variable of MKL names a kind of processor: 5 has AVX2,
    7 has the AVX-512 of Skylake servers.
    """
    facts: dict[str, str] = {}
    with suppress(OSError):  # another system than Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", "").split())
    if facts.get("vendor_id") in (None, "GenuineIntel") or not {"avx2", "fma"} <= flags:
        return None
    return "7" if {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= flags else "5"


def keep_freed_memory() -> None:
    """Tell glibc to serve large buffers from the heap and not to shrink it; elsewhere than on glibc, leave all as it is.

    glibc gives every buffer above 128 KB to the kernel and back again, and the kernel zeroes each page on first touch.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def threads() -> int:
    """How many paddle computes with on a CPU."""
    return int(os.environ[_THREADS])
