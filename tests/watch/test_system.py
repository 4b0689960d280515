"""The machine's counters beside what is known to have happened, and the GPU library beside a stand-in."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import pytest

from danlu.watch import gpu, names
from danlu.watch.gpu import Gpu
from danlu.watch.system import SystemMeter


def test_readings_are_named_and_see_the_process_work(tmp_path: Path) -> None:
    meter = SystemMeter("cpu")
    ends = time.process_time() + 0.2
    while time.process_time() < ends:
        pass
    found = meter.read()
    assert {f"system/{name}" for name in found} <= names.SIGNALS.keys()
    assert 0 < found["cpu_cores"] <= (os.cpu_count() or 1) + 0.5 and 0 < found["cpu_share"] <= 1
    assert found["memory_available_bytes"] > 0 and found["network_sent_bytes_per_second"] >= 0
    assert not any(name.startswith("gpu") for name in found)


def test_rates_are_bytes_over_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = SystemMeter("cpu")
    counters = iter([(10.0, 0, 0, 100, 0), (12.0, 500, 0, 300, 40), (13.0, 100, 0, 300, 40)])
    monkeypatch.setattr(meter, "_counters", lambda: next(counters))
    meter._last = meter._counters()
    found = meter.read()
    assert (found["disk_read_bytes_per_second"], found["network_sent_bytes_per_second"]) == (250, 100)
    assert found["network_received_bytes_per_second"] == 20
    assert meter.read()["disk_read_bytes_per_second"] == 0, "a counter that began anew is no negative rate"


class Driver:
    """A library with two GPUs; the second does not tell its power."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return int(index > 1)

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return int(name != b"GPU-b")

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, use: Any) -> int:
        use._obj.gpu = 10 * handle.value  # type: ignore[operator]
        return 0

    def nvmlDeviceGetMemoryInfo(self, _handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.used = 1 << 33
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, watts: Any) -> int:
        watts._obj.value = 250_500
        return int(handle.value == 2)


@pytest.mark.parametrize(
    ("visible", "index", "share"),
    [(None, 0, 0.1), ("1,0", 0, 0.2), ("1,0", 1, 0.1), ("GPU-b", 0, 0.2), ("1", 1, None), ("", 0, None)],
)
def test_the_process_s_gpu_is_found(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int, share: float | None
) -> None:
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda _name: Driver())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = Gpu.find(index)
    if share is None:
        assert found is None
        return
    assert found is not None
    told = {"gpu_share": share, "gpu_memory_bytes": float(1 << 33)} | ({"gpu_watts": 250.5} if share == 0.1 else {})
    assert found.read() == told


def test_without_a_driver_there_is_nothing() -> None:
    assert Gpu.find(0) is None or Path("/dev/nvidia0").exists()
