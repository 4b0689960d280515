"""How busy an NVIDIA GPU is, from the driver's own library (NVML); no package is needed, and without a driver nothing is told."""

from __future__ import annotations

import ctypes
import os
from typing import Any


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpu:
    """One GPU, as the driver knows it."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def find(cls, index: int) -> Gpu | None:
        """The process's GPU of that index, of those that CUDA_VISIBLE_DEVICES leaves; None: the driver does not know it."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        handle = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        named = str(index) if visible is None else ([*visible.split(","), *[""] * (index + 1)])[index].strip()
        if library.nvmlInit_v2():
            return None
        if named.isdecimal():
            failed = library.nvmlDeviceGetHandleByIndex_v2(int(named), ctypes.byref(handle))
        else:
            failed = library.nvmlDeviceGetHandleByUUID(named.encode(), ctypes.byref(handle))
        return None if failed else cls(library, handle)

    def read(self) -> dict[str, float]:
        """``gpu_share`` of the last moments, ``gpu_memory_bytes``, ``gpu_watts``; what the driver does not tell is missing."""
        use, memory, milliwatts = _Utilization(), _Memory(), ctypes.c_uint()
        found = {}
        if not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use)):
            found["gpu_share"] = use.gpu / 100
        if not self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            found["gpu_memory_bytes"] = float(memory.used)
        if not self._library.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(milliwatts)):
            found["gpu_watts"] = milliwatts.value / 1000
        return found
