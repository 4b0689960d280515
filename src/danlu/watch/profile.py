"""What bounds a run's speed, from the profile of some of its steps: the verdict, the operators, and where time went by.

A step's time is taken apart into waiting for data, waiting for other processes, operators that the device's matrix rate bounds,
operators that its memory bounds, and the rest, in which the device has nothing to do. Which of both rates bounds an operator is
told by the roofline (Williams et al. 2009): its operations / the measured matrix rate against its bytes / the measured copy rate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from danlu.errors import UserError
from danlu.watch import trace
from danlu.watch.format import MISSING, bytes_text, duration, padded, share

FOLDER = "profile"
TIMELINE = 500
"""Points of the memory timeline that are kept, extremes among them."""


def trace_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json.gz"


def steps_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}-steps.json"


class Bound(NamedTuple):
    """What the largest share of the time goes to."""

    bound: str
    """data, communication, compute, memory or host."""
    share: float
    """Of the step."""
    measured: float | None
    """FLOP/s or bytes/s that its operators reach together; None of the others."""
    limit: float | None
    """The rate measured on this machine, in the same unit."""


@dataclass
class Row:
    """An operator of one set of shapes, over all profiled steps."""

    name: str
    shapes: str
    calls: int
    seconds: float
    share: float
    """Of all operators' time."""
    bound: str
    of_limit: float | None
    """What it reaches of the rate that bounds it; None where neither its operations nor its bytes are known."""


@dataclass
class Profile:
    """One process's profile; times are seconds a step."""

    rank: int
    device: str
    steps: list[int]
    step: float
    data_wait: float
    communication: float
    """Waited for other processes."""
    communication_overlap: float | None
    """Share of all communication that ran beside computation; None where there is none, or where it cannot be told."""
    compute: float
    memory: float
    idle: float
    """The device had no operator of weight to do, and waited for nothing outside the process."""
    idle_cause: str
    verdict: Bound
    operators: list[Row]
    memory_peak: int
    memory_timeline: list[tuple[float, int]]
    trace: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict._asdict()}


def profiles(run: Path) -> list[Profile]:
    """Every process's profile in a run folder, by rank. UserError: nothing was profiled, or a file is damaged."""
    folder = run / FOLDER
    ranks = sorted(int(file.name.split("-")[1]) for file in folder.glob("rank-*-steps.json"))
    if not ranks:
        raise UserError(f"{run}: no steps were profiled; train with --profile steps=10:15")
    found = []
    for rank in ranks:
        try:
            told = json.loads(steps_file(folder, rank).read_text(encoding="utf-8"))
            found.append(profile(rank, told, trace.read(trace_file(folder, rank)), str(trace_file(folder, rank))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise UserError(f"{steps_file(folder, rank)}: damaged ({error}); profile the run again") from None
    return found


def profile(rank: int, told: dict[str, Any], found: trace.Trace, file: str) -> Profile:
    """From a trace, and what the training loop has measured of the same steps."""
    steps = told["steps"]
    count = len(steps)
    step = sum(each["seconds"] for each in steps) / count
    wait, waited = (sum(each["parts"].get(part, 0.0) for each in steps) / count for part in ("data_wait", "communication"))
    overlap = None
    if found.kernels:  # a GPU: what it did beside the messages, its own clock tells
        busy, messages = trace.union(found.kernels), trace.union(found.communication)
        exposed = trace.union([*found.kernels, *found.communication]) - busy
        waited = exposed / count
        overlap = 1 - exposed / messages if messages else None
    elif (messages := trace.union(found.communication)) > 0:
        overlap = max(0.0, 1 - waited * count / messages)
    matrix, copy = told["matmul_flops_per_second"], told["copy_bytes_per_second"]
    rows = [_row(one, sum(each.seconds for each in found.operators), matrix, copy) for one in found.operators if one.seconds]
    compute, memory = (sum(row.seconds for row in rows if row.bound == bound) / count for bound in ("compute", "memory"))
    idle = max(0.0, step - wait - waited - compute - memory)
    times = {"data": wait, "communication": waited, "compute": compute, "memory": memory, "host": idle}
    worst = max(times, key=lambda bound: times[bound])
    bound = Bound(worst, times[worst] / step, *_rate(worst, found.operators, rows, matrix, copy))
    peak = max((held for _, held in found.memory), default=0)
    return Profile(
        rank, told["device"], [each["step"] for each in steps], step, wait, waited, overlap, compute, memory, idle,
        "kernels come too late from the host" if found.kernels else "small operators, and Python between operators",
        bound, rows, peak, _thinned(found.memory), file,
    )  # fmt: skip


def lines(found: Sequence[Profile], operators: int) -> list[str]:
    """For a person: the verdict and the parts of every process, and the operators of the one that waits least."""
    said = []
    for one in found:
        head = f"rank {one.rank}: " if len(found) > 1 else ""
        said += [f"{head}{verdict_text(one)}", *_parts(one), ""]
    busiest = min(found, key=lambda one: one.communication)
    where = f" of rank {busiest.rank}" if len(found) > 1 else ""
    said.append(f"operators{where}, over steps {busiest.steps[0]} to {busiest.steps[-1]}, by their own time:")
    said += _table(busiest.operators[:operators])
    said += ["", f"trace, for ui.perfetto.dev or chrome://tracing: {busiest.trace}"]
    return said


def verdict_text(one: Profile) -> str:
    """One line: what bounds the run, with the figure and the machine's own limit."""
    bound, part, measured, limit = one.verdict
    name = {"host": "bound by the host"}.get(bound, f"{bound}-bound")
    text = f"{name}: {share(part)} of a step of {duration(one.step)} "
    if bound in ("compute", "memory"):
        unit = "GFLOP/s" if bound == "compute" else "GB/s"
        whose = "matrix products" if bound == "compute" else "operators that memory bounds"
        reached = MISSING if measured is None else f"{measured / 1e9:,.1f} {unit}"
        against = "" if measured is None or not limit else f", {share(measured / limit)} of the {limit / 1e9:,.1f} measured here"
        return f"{text}in {whose} at {reached}{against}"
    return (
        text
        + {
            "data": "waiting for batches; more data.workers, or data on a faster disk",
            "communication": "waiting for other processes; see the layout: danlu plan",
            "host": f"without work for the device ({one.idle_cause}); larger micro-batches, or train.compile",
        }[bound]
    )


def _parts(one: Profile) -> list[str]:
    rows = [
        ("data wait", one.data_wait),
        ("communication", one.communication),
        ("matrix products", one.compute),
        ("memory-bound", one.memory),
        ("idle", one.idle),
    ]
    said = [f"  {padded(name, 16)} {duration(seconds):>8}  {share(seconds / one.step):>6}" for name, seconds in rows]
    if one.communication_overlap is not None:
        said[1] += f"  {share(one.communication_overlap)} of all communication runs beside computation"
    said[-1] += f"  {one.idle_cause}"
    return [*said, f"  {padded('memory', 16)} {bytes_text(one.memory_peak):>8}  allocated at most"]


def _table(rows: Sequence[Row]) -> list[str]:
    said = [f"  {'share':>6} {'time':>8} {'calls':>7}  {padded('bound by', 8)} {'reached':>7}  operator and shapes"]
    for row in rows:
        reached = MISSING if row.of_limit is None else share(row.of_limit)
        said.append(
            f"  {share(row.share):>6} {duration(row.seconds):>8} {row.calls:>7,}  {padded(row.bound, 8)} {reached:>7}  "
            f"{row.name} {row.shapes}"
        )
    return said


def _row(one: trace.Operator, total: float, matrix: float | None, copy: float) -> Row:
    computing, moving = (one.flops / matrix if matrix else 0.0), one.bytes / copy
    if not (one.flops or one.bytes):
        bound, least = "host", None
    elif computing >= moving or (one.flops and not matrix):
        bound, least = "compute", computing or None
    else:
        bound, least = "memory", moving
    reached = None if least is None else least / one.seconds
    return Row(one.name, one.shapes, one.calls, one.seconds, one.seconds / total if total else 0.0, bound, reached)


def _rate(
    bound: str, operators: Sequence[trace.Operator], rows: Sequence[Row], matrix: float | None, copy: float
) -> tuple[float | None, float | None]:
    """What the operators of a bound reach together, and the limit."""
    chosen = [one for one, row in zip([one for one in operators if one.seconds], rows, strict=True) if row.bound == bound]
    seconds = sum(one.seconds for one in chosen)
    if bound not in ("compute", "memory") or not seconds:
        return None, None
    amount = sum(one.flops if bound == "compute" else one.bytes for one in chosen)
    return amount / seconds, matrix if bound == "compute" else copy


def _thinned(timeline: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most TIMELINE points, the highest of each stretch."""
    size = -(-len(timeline) // TIMELINE) or 1
    return [max(timeline[at : at + size], key=lambda point: point[1]) for at in range(0, len(timeline), size)]
