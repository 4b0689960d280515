"""Probes against what this process does to itself, and against the kernel's own figures."""

from __future__ import annotations

import json
import mmap
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

import danlu
from danlu.watch import probes

MIB = 1 << 20


def test_resident_memory_follows_an_allocation_and_the_peak_stays() -> None:
    before, peak_before = probes.resident_bytes(), probes.peak_resident_bytes()
    size = max(64 * MIB, peak_before - before + 64 * MIB)
    block = mmap.mmap(-1, size)  # not from the heap, which may still hold memory that another test has freed
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    during = probes.resident_bytes()
    assert during - before == pytest.approx(size, rel=0.25)
    block.close()
    after = probes.resident_bytes()
    assert during - after > size / 2
    assert probes.peak_resident_bytes() >= during - 2 * MIB > after
    assert probes.peak_resident_bytes() > peak_before


def test_children_count_when_asked_for() -> None:
    others = probes.resident_bytes(children=True) - probes.resident_bytes()  # of earlier tests
    program = "x = bytearray(80 << 20); print('ready', flush=True); x = None; input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.05)
        grown_peak = probes.peak_resident_bytes(children=True) - probes.peak_resident_bytes()
        grown = probes.resident_bytes(children=True) - probes.resident_bytes() - others
        child.stdin.write("\n")
    assert grown_peak > 80 * MIB, "the child's peak, although it has given the memory back"
    assert 2 * MIB < grown < 80 * MIB


def test_the_peak_is_this_processs_own_and_not_inherited_from_a_large_parent() -> None:
    block = bytearray(b"\x01" * (300 * MIB))
    program = "from danlu.watch.probes import peak_resident_bytes; print(peak_resident_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 5 * MIB < int(done.stdout) < 200 * MIB < len(block)


def test_cpu_use_since_the_last_call() -> None:
    meter = probes.CpuMeter()
    started, end = time.monotonic(), time.process_time() + 0.4
    while time.process_time() < end:
        pass
    busy, elapsed = meter.use(), time.monotonic() - started
    time.sleep(0.3)
    idle = meter.use()
    assert busy.process_cores == pytest.approx(0.4 / elapsed, rel=0.25), "also when other processes take their share"
    assert idle.process_cores < 0.1
    assert 0.0 < busy.machine_share <= 1.0 and 0.0 <= idle.machine_share <= 1.0


def test_available_memory_respects_the_machine() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < probes.available_memory_bytes() < total


def test_available_memory_respects_a_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for group, limit, current, cache in [(outer, "70000000", "40000000", "6000000"), (inner, "max", "30000000", "1")]:
        (group / "memory.max").write_text(limit + "\n")
        (group / "memory.current").write_text(current + "\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 2\n")
    monkeypatch.setattr(probes, "_own_cgroups", lambda: [inner, outer, tmp_path])
    assert probes.available_memory_bytes() == 36_000_000
    (outer / "memory.current").write_text("90000000")
    assert probes.available_memory_bytes() == 0


def test_free_disk_of_a_folder_that_is_still_to_come(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    measured = probes.disk_free_bytes(tmp_path / "runs" / "new")
    assert measured == pytest.approx(free.f_bavail * free.f_frsize, rel=0.05, abs=64 * MIB)


def test_the_machine_is_described_in_plain_json() -> None:
    machine = probes.machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["danlu"] == danlu.__version__ and machine["python"] == platform.python_version()
    assert machine["cores_usable"] == len(os.sched_getaffinity(0)) <= machine["cores_logical"]
    assert machine["memory_bytes"] == pytest.approx(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), rel=0.01)
    assert platform.node() not in json.dumps(machine) or len(platform.node()) < 4, "a report is passed on: no host name"
