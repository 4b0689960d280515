"""What a Chrome trace of a profiler says: operators with their own time, kernels, communication, and memory allocated."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.errors import UserError

_BYTES = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "short int": 2, "bool": 1, "unsigned char": 1, "signed char": 1,
    "c10::BFloat16": 2, "c10::Half": 2, "c10::complex<float>": 8,
}  # fmt: skip
_REDUCING = ("sum", "mean", "amax", "amin", "max", "norm", "all", "any", "count_nonzero", "dot", "item", "equal")
"""Operators that write much less than they read."""
_COMMUNICATION = ("c10d::", "gloo:", "nccl", "_c10d_functional::", "ncclDevKernel", "record_param_comms", "_allgather", "_reduce")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Operator:
    """All calls of one operator with one set of shapes. Seconds are its own, without those of operators inside it."""

    name: str
    shapes: str
    calls: int = 0
    seconds: float = 0.0
    """On the device: of its kernels on a GPU, else of the operator itself."""
    host_seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    """Read and written at least: what is given to it once, and a result as large as the largest of that unless it reduces."""


@dataclass
class Trace:
    """A trace of one process."""

    operators: list[Operator]
    kernels: list[tuple[float, float]] = field(default_factory=list)
    """(start, end) of what ran on a GPU for the computation, in seconds; none on a CPU."""
    communication: list[tuple[float, float]] = field(default_factory=list)
    """The same of communication, wherever it ran."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since the trace began, bytes allocated on the device)."""


def read(path: Path) -> Trace:
    """A .json or .json.gz. UserError: it is no trace, or was cut off."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a trace ({error}); profile the run again") from None
    return of_events(events)


def of_events(events: Sequence[dict[str, Any]]) -> Trace:
    """Of a trace's list of events."""
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    calls = [event for event in spans if event.get("cat") == "cpu_op"]
    kernels = [event for event in spans if event.get("cat") in _KERNELS]
    on_gpu: dict[Any, float] = defaultdict(float)
    for event in kernels:
        on_gpu[event.get("args", {}).get("External id")] += event["dur"] / 1e6
    operators: dict[tuple[str, str], Operator] = {}
    for event, own in _own_time(calls):
        name, arguments = event["name"], event.get("args", {})
        if _communicates(name):
            continue
        dims, types = arguments.get("Input Dims", []), arguments.get("Input type", [])
        shapes = _shapes(dims)
        found = operators.setdefault((name, shapes), Operator(name, shapes))
        found.calls += 1
        found.host_seconds += own
        found.seconds += on_gpu.get(arguments.get("External id"), 0.0) if kernels else own
        # A profile whose trace has no types says itself what its operators do.
        found.flops += arguments["flops"] if "flops" in arguments else flops(name, dims, arguments.get("Concrete Inputs", []))
        found.bytes += arguments["bytes"] if "bytes" in arguments else moved(name, dims, types)
    start = min((event["ts"] for event in spans), default=0.0)
    memory = [
        ((event["ts"] - start) / 1e6, int(event["args"]["Total Allocated"]))
        for event in events
        if event.get("name") == "[memory]" and bool(event["args"].get("Device Type")) == bool(kernels)
    ]
    messages = [event for event in (kernels if kernels else spans) if _communicates(event["name"])]
    return Trace(
        sorted(operators.values(), key=lambda one: -one.seconds),
        [_span(event) for event in kernels if not _communicates(event["name"])],
        [_span(event) for event in messages],
        sorted(memory),
    )


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of (start, end) covers."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def flops(name: str, dims: Sequence[Any], values: Sequence[str]) -> float:
    """Floating-point operations of a matrix product or of attention, by its inputs' shapes; 0 of others."""
    if (product := _product(name, dims)) is not None:
        b, m, k, n = product
        return 2.0 * b * m * k * n
    operator = name.removeprefix("aten::")
    if not operator.startswith(("_scaled_dot_product", "_flash_attention", "_efficient_attention")):
        return 0.0
    backward = operator.endswith("backward")
    try:
        query, key = dims[1:3] if backward else dims[:2]
        b, h, t, k = query
        # Two products forward, five backward (Dao et al. 2022); the mask of a causal one leaves half.
        return float((10 if backward else 4) * b * h * t * key[2] * k) * (0.5 if "True" in values else 1.0)
    except (ValueError, IndexError, TypeError):
        return 0.0


def moved(name: str, dims: Sequence[Any], types: Sequence[str]) -> float:
    """Bytes that an operator reads and writes at least. 0 of one that only looks at a tensor in another way."""
    operator = name.removeprefix("aten::")
    if not name.startswith("aten::") or operator in _VIEWS or operator.startswith(("empty", "new_empty", "set_")):
        return 0.0
    sizes = [_size(shape, kind) for shape, kind in zip(dims, types, strict=False)]
    if (product := _product(name, dims)) is not None:
        b, m, _, n = product
        return sum(sizes) + float(b * m * n * _BYTES.get(types[0], 4))
    written = 0.0 if operator.rstrip("_") in _REDUCING else max(sizes, default=0.0)
    return sum(sizes) + written


def _product(name: str, dims: Sequence[Any]) -> tuple[int, int, int, int] | None:
    """(b, m, k, n) of a matrix product (b, m, k) x (b, k, n)."""
    first = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}.get(name)
    if first is None or len(dims) < first + 2:
        return None
    left, right = dims[first], dims[first + 1]
    if not len(left) == len(right) == (3 if "bmm" in name else 2):
        return None
    return (left[0] if len(left) == 3 else 1), left[-2], left[-1], right[-1]


_VIEWS = {
    *(
        "view",
        "t",
        "transpose",
        "as_strided",
        "expand",
        "reshape",
        "permute",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "detach",
    ),
    *("alias", "split", "chunk", "unbind", "narrow", "unflatten", "flatten", "resolve_conj", "resolve_neg", "_unsafe_view", "to"),
    *(
        "linear",
        "matmul",
        "is_nonzero",
        "view_as",
        "expand_as",
        "contiguous",
        "item",
        "unsafe_split",
        "lift_fresh",
        "result_type",
    ),
}
"""Operators that move nothing by themselves."""


def _own_time(calls: Sequence[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], float]]:
    """(call, seconds without the calls inside it on its thread)."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in calls:
        threads[event.get("pid"), event.get("tid")].append(event)
    for each in threads.values():
        open_calls: list[list[Any]] = []  # call, its end, time of calls inside
        for event in sorted(each, key=lambda call: (call["ts"], -call["dur"])):
            while open_calls and event["ts"] >= open_calls[-1][1]:
                yield _closed(open_calls)
            if open_calls:
                open_calls[-1][2] += event["dur"]
            open_calls.append([event, event["ts"] + event["dur"], 0.0])
        while open_calls:
            yield _closed(open_calls)


def _closed(open_calls: list[list[Any]]) -> tuple[dict[str, Any], float]:
    event, _, inside = open_calls.pop()
    return event, max(0.0, event["dur"] - inside) / 1e6


def _communicates(name: str) -> bool:
    return name.startswith(_COMMUNICATION) or "nccl" in name.lower()


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6


def _size(shape: Any, kind: str) -> float:
    """Bytes of a tensor, or of a list of them."""
    if not isinstance(shape, list) or not shape:
        return 0.0
    if isinstance(shape[0], list):
        return sum(_size(one, "float") for one in shape)
    if kind not in _BYTES:
        return 0.0
    size = float(_BYTES[kind])
    for extent in shape:
        size *= extent
    return size


def _shapes(dims: Sequence[Any]) -> str:
    """Such as [512, 64] [64, 64]; of lists of tensors the number."""
    told = [
        f"{len(shape)} tensors" if isinstance(shape[0], list) else str(shape)
        for shape in dims
        if isinstance(shape, list) and shape
    ]
    return " ".join(told[:3])
