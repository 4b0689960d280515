"""A live page's server in a thread of the test's own process, and runs to show on it."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from danlu.watch.server.app import application
from danlu.watch.server.runs import Runs
from danlu.watch.server.serve import HOST, bound
from danlu.watch.store import Recorder

HEALTHY = {"name": "x", "worst": None, "findings": [], "silent": ["a", "b"], "not_enough_data": {"c": "no loss"}}


@contextmanager
def serving(*places: Path, diagnose: Callable[[Path], dict[str, Any]] = lambda _: HEALTHY) -> Iterator[str]:
    """The address of a page that shows these places."""
    with bound(0) as listening:
        config = uvicorn.Config(application(Runs(places), diagnose), log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


def get(address: str, path: str, headers: dict[str, str] | None = None) -> Any:
    """The JSON that the server answers."""
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers or {}), timeout=30) as answer:
        return json.load(answer)


def events_of(address: str, last_id: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events as (id, data), as they come."""
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/api/live", headers=headers), timeout=30) as stream:
        number = ""
        for line in stream:
            name, _, value = line.decode().strip().partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                yield number, json.loads(value)


def record(folder: Path, steps: range, ends: str | None = "finished", noise: float = 0.0) -> Path:
    """A run of so many steps, with its usual signals and some events."""
    folder.mkdir(parents=True, exist_ok=True)
    with Recorder.open(folder / "metrics.sqlite") as recorder:
        recorder.start_segment(steps[0], {"steps": steps[-1], "tokens_per_step": 1000, "flops_per_step": 2e9})
        recorder.event(steps[0], "start", "training starts")
        for step in steps:
            recorder.scalars(step, values(step, noise))
        recorder.event(steps[len(steps) // 2], "skipped_step", "not finite")
        if ends:
            recorder.event(steps[-1], ends, "all steps done")
    return folder


def values(step: int, noise: float = 0.0) -> dict[str, float]:
    """What is recorded at a step."""
    found = {
        "train/loss": 2 + 8 / (1 + step / 50) + noise * (step * 7919 % 101) / 101,
        "train/gradient_norm": 1.0 + step % 7 / 7,
        "train/learning_rate": 1e-3,
        "train/tokens_per_second": 5000.0 + step % 5,
        "time/step": 0.2,
        "memory/resident_bytes": 3e8,
    }
    return found | ({"validation/loss": 2.5 + 8 / (1 + step / 50)} if step % 50 == 0 else {})


def until(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `true` returns once it is true; an error if that takes too long."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return found
