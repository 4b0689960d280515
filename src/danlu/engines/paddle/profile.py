"""A profile of some steps on a CPU by paddle.profiler, as ``danlu.watch.trace`` reads it, and the rate of its memory.

An operator is the launch of a kernel. Paddle's traces have no shapes, so the operators that decide what bounds a
step are followed beside them: matrix products, forward and backward, and the update. What others move is told by what
they allocate.
"""

from __future__ import annotations

import gzip
import json
import math
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import paddle
import paddle.nn.functional as F
from paddle import Tensor, profiler

COPY_SECONDS = 0.2
"""How long copies are timed; the best one counts, since others may use the machine too."""
COPY_BYTES = 64 << 20
"""Of a copy: more than caches hold."""
COPIES = 5
"""At least, after one that is not timed, since it finds its target's pages."""
_LAUNCH = " kernel launch"
_FILLING = ("full", "full_like", "arange", "embedding")


class _Call(NamedTuple):
    """One launch of a kernel."""

    shapes: list[list[int]]
    flops: float
    bytes: float


class StepProfile:
    """Operators, and what is allocated, from the start to the end."""

    def __init__(self) -> None:
        self.calls: dict[str, list[_Call]] = defaultdict(list)
        self.patches = ExitStack()
        for holder, name, followed in (
            (paddle, "matmul", self._matmul(paddle.matmul)),
            (F, "linear", self._linear),
            (paddle._C_ops, "adamw_", self._adamw(paddle._C_ops.adamw_)),
        ):
            self.patches.enter_context(patch.object(holder, name, followed))
        self.profile = profiler.Profiler(
            targets=[profiler.ProfilerTarget.CPU], profile_memory=True, on_trace_ready=lambda _: None
        )
        self.profile.start()

    def end(self) -> Callable[[Path], None]:
        """End; what is returned writes a Chrome trace (.json.gz)."""
        self.profile.stop()
        self.patches.close()
        return self._write

    def _write(self, trace: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
            self.profile.export(plain := f"{folder}/trace.json", "json")
            content = json.loads(Path(plain).read_text(encoding="utf-8"))
        content["traceEvents"] = events(content["traceEvents"], self.calls)
        with gzip.open(trace, "wt", encoding="utf-8") as file:
            json.dump(content, file)

    def _matmul(self, honest: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
            made = honest(x, y, transpose_x, transpose_y)
            inner = x.shape[-2 if transpose_x else -1]
            sizes = [x.size * x.element_size(), y.size * y.element_size(), made.size * made.element_size()]
            shapes, flops = [list(x.shape), list(y.shape)], 2.0 * made.size * inner
            self.calls["matmul"].append(_Call(shapes, flops, sum(sizes)))
            if not made.stop_gradient:
                products = (not x.stop_gradient) + (not y.stop_gradient)
                backward = _Call([list(made.shape), *shapes], products * flops, 2 * (sizes[0] + sizes[1]) + sizes[2])
                # Called in the very call of the node that launches the kernel, so in the order of launches.
                made.register_hook(lambda _: self.calls["matmul_grad"].append(backward))
            return made

        return matmul

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, name: str | None = None) -> Tensor:
        """As paddle's own makes it of operators."""
        made = paddle.matmul(x, weight)
        return made if bias is None else made + bias

    def _adamw(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        def adamw(*arguments: Any) -> Any:
            parameter = arguments[0]
            moved = 7.0 * parameter.size * parameter.element_size()  # of weight, gradient and two moments all but one come back
            self.calls["adamw"].append(_Call([list(parameter.shape)], 0.0, moved))
            return honest(*arguments)

        return adamw


def events(found: list[dict[str, Any]], calls: Mapping[str, list[_Call]]) -> list[dict[str, Any]]:
    """Paddle's events in torch's words: plain names, numbers of threads, and launches as operators with what they work on."""
    threads: dict[Any, int] = {}
    launches: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    made = []
    for event in found:
        if "name" not in event:
            continue
        event["tid"] = threads.setdefault(event.get("tid"), len(threads) + 1)
        if event["name"] == "[memory]":
            memory.append(event)
            event["args"] |= {"Total Allocated": event["args"]["current_allocated"], "Device Type": 0}
        elif event.get("ph") == "X":
            event["name"] = event["name"].rpartition("[")[0]
            if event["name"].endswith(_LAUNCH):
                event |= {"name": event["name"].removesuffix(_LAUNCH), "cat": "cpu_op"}
                launches.append(event)
        made.append(event)
    launches.sort(key=_start)
    _tell_allocations(launches, memory)
    _tell_calls(launches, calls)
    return made


def _start(event: dict[str, Any]) -> float:
    """Microseconds, to the fraction that ``ts`` leaves out."""
    return float(event["args"]["start_time"].split()[0])


def _tell_allocations(launches: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    """What an operator allocates it writes, and it reads as much unless it fills."""
    starts = [event["ts"] for event in launches]
    for event in launches:
        event["args"] |= {"flops": 0.0, "bytes": 0.0}
    for event in memory:
        at = bisect_right(starts, event["ts"]) - 1
        if (
            event["cat"] == "Allocate" and at >= 0 and event["ts"] <= starts[at] + launches[at]["dur"] + 1
        ):  # of whole microseconds
            launch = launches[at]
            launch["args"]["bytes"] += (1 if launch["name"] in _FILLING else 2) * event["args"]["increase_bytes"]


def _tell_calls(launches: list[dict[str, Any]], calls: Mapping[str, list[_Call]]) -> None:
    """Those that were followed come in the order of their launches. Where another caller launched some too, none is told."""
    for name, followed in calls.items():
        own = [event for event in launches if event["name"] == name]
        if len(own) == len(followed):
            for event, call in zip(own, followed, strict=True):
                event["args"] |= {"Input Dims": call.shapes, "flops": call.flops, "bytes": call.bytes}


def copy_peak() -> float:
    """Bytes a second that a copy between two places in host memory reads and writes together."""
    source = paddle.ones([COPY_BYTES // 4])
    target = paddle.empty_like(source)
    paddle.assign(source, target)
    best, copies, started = math.inf, 0, time.perf_counter()
    while time.perf_counter() - started < COPY_SECONDS or copies < COPIES:
        copies += 1
        start = time.perf_counter()
        paddle.assign(source, target)
        best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best
