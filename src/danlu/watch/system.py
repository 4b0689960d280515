"""What the machine and this process do between two readings: CPU, memory, disks, network, and the process's GPU."""

from __future__ import annotations

import time

import psutil

from danlu.watch import probes
from danlu.watch.gpu import Gpu

_LOOPBACK = ("lo", "lo0")
RATES = (
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
    "network_sent_bytes_per_second",
    "network_received_bytes_per_second",
)


class SystemMeter:
    """Reads the counters of the machine. Rates are those since the reading before, the first one's since the meter was made."""

    def __init__(self, device: str) -> None:
        """``device`` is what the process computes on, such as ``cpu`` or ``cuda:0``."""
        self._cpu = probes.CpuMeter()
        self._gpu = Gpu.find(int(device.rpartition(":")[2] or 0)) if device.startswith("cuda") else None
        self._last = self._counters()

    def read(self) -> dict[str, float]:
        """By the names of ``names.SIGNALS`` behind ``system/``; what this machine does not tell is missing."""
        use = self._cpu.use()
        found = {
            "cpu_cores": use.process_cores,
            "cpu_share": use.machine_share,
            "memory_available_bytes": float(probes.available_memory_bytes()),
        }
        now, last = self._counters(), self._last
        self._last = now
        elapsed = now[0] - last[0]
        for name, new, old in zip(RATES, now[1:], last[1:], strict=True):
            if new is not None and old is not None and elapsed > 0:
                found[name] = max(0.0, new - old) / elapsed
        return found | (self._gpu.read() if self._gpu is not None else {})

    def _counters(self) -> tuple[float, float | None, float | None, float | None, float | None]:
        """Time, bytes read and written, sent and received so far."""
        disk = psutil.disk_io_counters()
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name not in _LOOPBACK]
        read, written = (None, None) if disk is None else (disk.read_bytes, disk.write_bytes)
        return time.monotonic(), read, written, sum(card.bytes_sent for card in cards), sum(card.bytes_recv for card in cards)
