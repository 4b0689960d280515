"""``parallel: auto`` and ``memory: auto``: the planner fills in the recipe for the devices of this machine."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from danlu import engines
from danlu.data import tokenizer as tokenizers
from danlu.engines.base import Gpus
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.plan import hardware
from danlu.plan.changes import smallest_changes
from danlu.plan.hardware import Hardware
from danlu.plan.outcome import row
from danlu.plan.request import Request, from_recipe, given, own_layout, recipe_fields
from danlu.plan.search import SAME, Plan, search
from danlu.plan.space import divisors
from danlu.plan.verdict import paste
from danlu.plan.words import gigabytes, layout, techniques
from danlu.recipe import Recipe, resolve_shape
from danlu.recipe.load import parse
from danlu.recipe.train_sections import MemorySection, ParallelSection
from danlu.watch.probes import machine

CPU = "cpu"
HARDWARE = "DANLU_HARDWARE"
"""Environment variable that names a hardware file for this machine, such as `danlu hardware measure` writes."""
CPU_CORES = 2
"""Cores that the shipped CPU file describes."""


class Machine(NamedTuple):
    """What this machine offers to so many processes."""

    hardware: Hardware
    devices: int


def filled(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe as it will be trained on this machine, and what to tell of it; the same recipe where nothing is automatic.

    UserError: nothing fits, or what is given beside auto goes with no layout of this machine.
    """
    if not recipe.automatic:
        return recipe, []
    machines = _machines(recipe)
    if not machines:
        raise UserError(f"parallel.auto: no hardware file describes this GPU ({', '.join(hardware.names())}); give the layout")
    request = from_recipe(recipe, resolve_shape(recipe, vocabulary(recipe)), given(recipe))
    best = _best(request.with_(precisions=(recipe.train.precision,)), machines)
    bound = f"at most {gigabytes(best.memory.bound)} of {gigabytes(best.hardware.memory)} a device"
    told = f"planned for {best.job.devices} x {best.hardware.name}: {layout(best.job)}; {techniques(best.job)}; {bound}"
    return _with(recipe, best), [told, *paste(best)]


def prediction(recipe: Recipe, shape: ModelShape) -> dict[str, Any] | None:
    """What the planner says of a recipe's layout on this machine, for plan.json; None where it does not know the GPU."""
    machines = _machines(recipe)
    if not machines:
        return None
    wanted = recipe.parallel.processes
    here = next((each for each in machines if each.devices == wanted), machines[-1]).hardware
    predicted = row(Plan(own_layout(recipe, shape), here), from_recipe(recipe, shape))
    return {"hardware": here.name, "device_memory": here.memory, **predicted}


def _best(request: Request, machines: list[Machine]) -> Plan:
    """The best plan over all numbers of processes: the fewest that are about as fast as any."""
    found = [(each, search(request, each.hardware, each.devices)) for each in machines]
    plans = [result.plans[0] for _, result in found if result.plans]
    if plans:
        fastest = min(plan.time.seconds for plan in plans)
        return next(plan for plan in plans if plan.time.seconds <= SAME * fastest)
    usual = {**ParallelSection().model_dump(), **MemorySection().model_dump(), "offload": "none"}
    told = [f"{name} {value}" for name, value in request.fixed.items() if usual.get(name) != value]
    given = ", ".join([*told, f"train.global_batch {request.global_batch}"])
    devices = " or ".join(str(each.devices) for each in machines)
    if not any(result.considered for _, result in found):
        raise UserError(f"parallel.auto: no layout of {devices} devices goes with {given}; leave one of them out, or change it")
    last = machines[-1]
    changes = smallest_changes(request, last.hardware, last.devices)
    if last.hardware.family == CPU:  # more processes share the same memory
        changes = [change for change in changes if change.plan.job.devices <= last.devices]
    way_out = "; or ".join(change.text for change in changes[:3]) or "choose a smaller model"
    room = gigabytes(last.hardware.memory)
    raise UserError(f"memory: nothing fits {last.devices} x {last.hardware.name} ({room} each); what would: {way_out}")


def _with(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe with the plan's fields in its automatic sections, checked like any other."""
    chosen = recipe_fields(plan.job)
    tree = recipe.model_dump(mode="python", exclude_unset=True)
    for name in ("parallel", "memory"):
        section = getattr(recipe, name)
        if section.auto or name == "memory":
            tree[name] = {**tree.get(name, {}), **chosen[name]}
            tree[name].pop("auto", None)
    return parse(tree)


def vocabulary(recipe: Recipe) -> int | None:
    """Tokens of a tokenizer that is there already; None while it is to be trained."""
    settings = recipe.data.tokenizer
    if settings.path is None:
        return None
    return tokenizers.load(settings.path, settings.begin, settings.end).vocab_size


def _machines(recipe: Recipe) -> list[Machine]:
    """What this machine can be for one process, two, and so on; empty where it has GPUs that no hardware file describes."""
    facts = machine()
    numbers = sorted({*divisors(facts["cores_usable"]), recipe.parallel.processes})
    if named := os.environ.get(HARDWARE):
        whole = hardware.load(named)
        if whole.family != CPU:
            return [Machine(whole, number) for number in divisors(whole.devices_per_node)]
        room = float(facts["memory_available_bytes"])
        whole = whole.model_copy(update={"memory": room, "host_memory": room})
        return [Machine(whole.of(number), number) for number in numbers]
    if recipe.train.device != "cpu" and (found := engines.gpus(recipe.train.engine)) is not None:
        return _gpus(found)
    return [Machine(_share(facts, number), number) for number in numbers]


def _share(facts: dict[str, Any], processes: int) -> Hardware:
    """One of so many equal parts of this machine's cores, memory and bandwidth."""
    whole = hardware.load(CPU)
    part = facts["cores_usable"] / CPU_CORES / processes
    rates = {name: rate and rate * part for name, rate in whole.peak.model_dump().items()}
    return whole.model_copy(
        update={
            "memory": facts["memory_available_bytes"] / processes,
            "host_memory": facts["memory_available_bytes"] / processes,
            "peak": whole.peak.model_copy(update=rates),
            "bandwidth": whole.bandwidth * part,
            "devices_per_node": processes,
        }
    )


def _gpus(found: Gpus) -> list[Machine]:
    """The GPUs of this machine, all or fewer of them, as the shipped file that has their name describes them."""
    known = described(found.name, found.memory)
    if known is None:
        return []
    here = known.model_copy(update={"memory": float(found.memory), "devices_per_node": found.count})
    return [Machine(here, number) for number in divisors(found.count)]


def described(name: str, memory: float) -> Hardware | None:
    """The shipped hardware that a driver's name such as ``NVIDIA A100-SXM4-40GB`` means; of several, the nearest in memory."""
    words = name.lower().replace("-", " ").split()
    files = [each for each in hardware.names() if each != CPU and each.removeprefix("rtx-").split("-")[0] in words]
    return min((hardware.load(each) for each in files), key=lambda each: abs(each.memory - memory), default=None)
