"""What the machine and this process are doing: memory, CPU, disk, and what machine it is. Sizes are in bytes."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import danlu

_CGROUPS = Path("/sys/fs/cgroup")


def resident_bytes(children: bool = False) -> int:
    """Memory of this process that is in RAM, or of it and all its descendants.

    With children it is an upper bound: pages that processes share (forked loader workers do) count once for each.
    """
    return _summed(lambda process: int(process.memory_info().rss), children)


def peak_resident_bytes(children: bool = False) -> int:
    """The most that `resident_bytes` has been since the process began; with children, the sum of each one's own peak."""
    return _summed(_peak, children)


def available_memory_bytes() -> int:
    """Memory that can still be used before the machine swaps or the container's limit kills a process."""
    available = int(psutil.virtual_memory().available)
    rooms = [room for group in _own_cgroups() if (room := _cgroup_room(group)) is not None]
    return max(0, min([available, *rooms]))


def disk_free_bytes(folder: Path | str) -> int:
    """Space that an ordinary user can still fill on the disk that holds `folder`, or its nearest parent that exists."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return int(psutil.disk_usage(str(place)).free)


class CpuUse(NamedTuple):
    """CPU use over a span of time."""

    process_cores: float
    """Cores that this process kept busy, 1.0 being one whole core."""
    machine_share: float
    """Share of all the machine's cores that were busy, 0..1."""


class CpuMeter:
    """Measures CPU use between calls."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last = self._reading()

    def use(self) -> CpuUse:
        """CPU use since the last call, or since the meter was made. Spans below about 0.1 s are coarse."""
        now, last = self._reading(), self._last
        self._last = now
        elapsed, process, busy, total = (new - old for new, old in zip(now, last, strict=True))
        return CpuUse(process / elapsed if elapsed > 0 else 0.0, min(1.0, max(0.0, busy / total)) if total > 0 else 0.0)

    def _reading(self) -> tuple[float, float, float, float]:
        own, machine = self._process.cpu_times(), psutil.cpu_times()
        # guest time is contained in user time already
        total = sum(machine) - getattr(machine, "guest", 0.0) - getattr(machine, "guest_nice", 0.0)
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return time.monotonic(), own.user + own.system, total - idle, total


def machine() -> dict[str, Any]:
    """What this machine is, for environment.json: flat, JSON types only, nothing that names its owner."""
    return {
        "cpu": _cpu_model(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(logical=True),
        "cores_usable": _usable_cores(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "memory_available_bytes": available_memory_bytes(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "danlu": danlu.__version__,
    }


def _summed(measure: Callable[[psutil.Process], int], children: bool) -> int:
    own = psutil.Process()
    return measure(own) + (sum(_of_each(own.children(recursive=True), measure)) if children else 0)


def _of_each(processes: list[psutil.Process], measure: Callable[[psutil.Process], int]) -> Iterator[int]:
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # a worker may end at any moment
            yield measure(process)


def _peak(process: psutil.Process) -> int:
    # getrusage is of no use where /proc exists: its peak is inherited through exec, from a parent that may be far larger.
    try:
        for text in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if text.startswith("VmHWM:"):
                # The kernel counts pages per core and adds up lazily, so its peak can lag a little behind the present.
                return max(int(text.split()[1]) * 1024, int(process.memory_info().rss))
    except OSError as error:
        if Path("/proc/self/status").exists():
            raise psutil.NoSuchProcess(process.pid) from error
    if process.pid == os.getpid() and sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = process.memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))  # Windows keeps the peak; elsewhere the present size must do


def _own_cgroups() -> list[Path]:
    """Folders of this process's control group (version 2) and of all above it, each of which may set a limit."""
    with suppress(OSError):
        for text in Path("/proc/self/cgroup").read_text().splitlines():
            if text.startswith("0::/"):
                own = _CGROUPS / text.removeprefix("0::/")
                return [own, *(parent for parent in own.parents if parent.is_relative_to(_CGROUPS))]
    return []


def _cgroup_room(folder: Path) -> int | None:
    """Bytes left below the memory limit of the control group at `folder`; None without a limit.

    Page cache that the kernel would give back at once (inactive_file) counts as room, as container tools count it.
    """
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        current = int((folder / "memory.current").read_text())
        statistics = dict(text.split() for text in (folder / "memory.stat").read_text().splitlines())
        return int(limit) - current + int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):
        return None


def _cpu_model() -> str | None:
    with suppress(OSError):
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = text.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or None


def _usable_cores() -> int:
    """Cores that this process may run on, which a container or taskset can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
