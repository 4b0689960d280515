"""A hardware file for this machine: what it was measured to take, by processes that compute on it at once."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from danlu import engines
from danlu.engines import whole_step
from danlu.engines.base import Gpus
from danlu.errors import DanluError, UserError
from danlu.files import write_text
from danlu.plan import hardware
from danlu.plan.request import own_layout
from danlu.plan.step_time import step_time
from danlu.recipe import resolve_shape
from danlu.watch.probes import machine

MOST = 4
"""Processes that are measured at once on a CPU."""
PATIENCE = 600
"""Seconds after which a measurement is given up."""


def measure(device: str, counts: Sequence[int] | None = None) -> dict[str, Any]:
    """The content of a hardware file. DanluError: a process of the measurement failed."""
    facts, cuda = machine(), device == "cuda"
    shares: list[dict[str, Any]] = []
    for count in counts or _counts(device, facts):
        output = processes(["-m", "danlu.engines.torch.measure", device], count, threads=None if cuda else facts["cores_usable"])
        shares.append(json.loads(output.splitlines()[-1]))
        # One process alone knows what a step costs without any layout.
        shares[-1]["fixed"] = {**shares[0]["fixed"], **shares[-1]["fixed"]}
    whole = [share.pop("whole") for share in shares]
    content = (_gpu if cuda else _cpu)(facts, shares) | {"measured": shares}
    machine_so_far = hardware.Hardware.model_validate(content)
    for share, seconds in zip(shares, whole, strict=True):
        share["slowdown"] = {
            precision: one / _planned(device, precision, share, machine_so_far) for precision, one in seconds.items()
        }
    return content


def _planned(device: str, precision: str, share: dict[str, Any], parts: hardware.Hardware) -> float:
    """Seconds of the step that was timed whole, as a sum of its parts."""
    recipe = whole_step.recipe(device, precision, share["processes"])
    return step_time(own_layout(recipe, resolve_shape(recipe, None)), parts).seconds


def device() -> str:
    """cuda where there is a GPU, else cpu. UserError: there is nothing to measure with."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("danlu hardware measure needs PyTorch, which is not installed: pip install danlu[torch]")
    return "cpu" if engines.gpus("torch") is None else "cuda"


def write(content: dict[str, Any], path: Path) -> None:
    """As YAML that ``plan.hardware`` reads; it is read at once, so that nothing is left that does not read."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 140
    text = StringIO()
    text.write("# Written by `danlu hardware measure`. Bytes, seconds, operations a second. The price is yours to fill in.\n")
    yaml.dump(_rounded(content), text)
    hardware.parse(text.getvalue(), str(path))
    write_text(path, text.getvalue())


def processes(arguments: Sequence[str], count: int, threads: int | None = None) -> str:
    """What the first of so many Python processes prints, which find each other like ranks; each has its share of the threads."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = threads or machine()["cores_usable"]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    shared |= {"OMP_NUM_THREADS": str(max(1, cores // count))} if "OMP_NUM_THREADS" not in os.environ else {}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [each.communicate(timeout=PATIENCE) for each in started]
    finally:
        for each in started:
            each.kill()
    for each, (_, errors) in zip(started, outputs, strict=True):
        if each.returncode:
            last = errors.strip().splitlines()[-1:] or ["without a word"]
            raise DanluError(f"a process of the measurement failed: {last[0]}")
    return outputs[0][0]


def _counts(device: str, facts: dict[str, Any]) -> list[int]:
    """1, 2, 4: as many processes as get a core each, and two at least; of GPUs all."""
    if device == "cuda":
        return sorted({1, _found().count})
    return [count for count in (1, 2, MOST) if count <= max(2, facts["cores_usable"])]


def _cpu(facts: dict[str, Any], shares: list[dict[str, Any]]) -> dict[str, Any]:
    """The plain figures of a hardware file, from the curves of one process."""
    memory, rates = float(facts["memory_available_bytes"]), _rates(shares)
    return {
        "name": "this-cpu",
        "family": "cpu",
        "memory": memory,
        **rates,
        "multiprocessors": 1,
        "devices_per_node": max(facts["cores_usable"], shares[-1]["processes"]),
        "network": rates["node_link"],
        "host_link": rates["bandwidth"],
        "host_memory": memory,
        "price": 0.0,
    }


def _found() -> Gpus:
    """UserError: a GPU was asked for, and there is none."""
    if (found := engines.gpus("torch")) is None:
        raise UserError("--device cuda was asked for, but PyTorch sees no GPU here; give cpu")
    return found


def _gpu(facts: dict[str, Any], shares: list[dict[str, Any]]) -> dict[str, Any]:
    """The same beside GPUs, whose family, links and price are those of the shipped file that has their name, if one has."""
    from danlu.auto import described

    found = _found()
    known = described(found.name, found.memory)
    host = facts["memory_available_bytes"] / found.count
    plain = {"family": "ampere", "network": 1.25e9, "host_link": 16e9, "price": 0.0}
    if known is not None:
        plain = {name: getattr(known, name) for name in plain}
    return {
        "name": "this-gpu",
        "memory": float(found.memory),
        "multiprocessors": found.multiprocessors,
        "devices_per_node": found.count,
        "host_memory": host,
        **plain,
        **_rates(shares),
    }


def _rates(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """Best rates: of products by precision, of copies, and of a large message among all processes."""
    alone = shares[0]
    peak = {precision: max(size / seconds for size, seconds in points) for precision, points in alone["matmul"].items()}
    copies = alone["operators"]["copy"]["fp32"]["forward"]
    bandwidth = 2 * 4 * copies[-1][0] / copies[-1][1]
    sends = shares[-1]["collectives"].get("send")
    return {"bandwidth": bandwidth, "peak": peak, "node_link": sends[-1][0] / sends[-1][1] if sends else bandwidth}


def _rounded(value: Any) -> Any:
    """Numbers with four digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
