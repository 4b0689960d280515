"""What each engine has a part for, of the layouts and memory techniques that a recipe can ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from danlu.errors import UserError
from danlu.recipe.sections import Recipe


@dataclass(frozen=True)
class Offered:
    """Of one engine. The fields are named after the recipe's."""

    apis: tuple[str, ...] = ("fleet",)
    amp_levels: tuple[str, ...] = ("O1",)
    pipelines: bool = True
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "zero-bubble")
    interleaved_from: int = 2
    """Pipeline ranks that an interleaved schedule takes at least."""
    sequence_parallel: bool = True
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    offload: bool = True
    """Of moments and parameters."""
    adapters: tuple[str, ...] = ("base", "dropout", "dora")
    """Fields of train.lora that may be other than their default."""
    objectives: tuple[str, ...] = ("pretrain", "sft", "distill", "dpo")
    compiled_layouts: bool = True
    """Compilation in several processes."""
    compiled_splits: bool = True
    """Compilation of layers that tensor parallelism or ZeRO 3 splits."""
    cpu_precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    """With matrix products on a CPU."""
    meter: bool = True
    """Of memory, which follows operators one by one."""
    compiled_profiles: bool = True
    """Profiles that see into a compiled graph."""
    note: str | None = None
    """What to say of the planner's figures."""


OFFERED = {
    "torch": Offered(),
    "paddle": Offered(
        apis=("fleet", "auto_parallel"),
        amp_levels=("O1", "O2"),
        schedules=("1f1b", "interleaved"),
        interleaved_from=3,
        recomputes=("none", "full"),
        offload=False,
        adapters=(),
        objectives=("pretrain", "sft"),
        compiled_splits=False,
        cpu_precisions=("fp32",),
        meter=False,
        compiled_profiles=False,
        note="memory and time are those of the torch engine; with train.engine paddle they have not been measured",
    ),
}
"""By ``train.engine``."""


def of(recipe: Recipe) -> Offered:
    """What there is for the engine and the api that a recipe names."""
    offered = OFFERED[recipe.train.engine]
    if recipe.parallel.api == "fleet":
        return offered
    return replace(
        offered,
        pipelines=False,
        zero_stages=(0, 1, 2),
        schedules=("1f1b",),
        sequence_parallel=False,
        amp_levels=("O1",),
        compiled_layouts=False,
    )


def check(recipe: Recipe) -> None:
    """UserError: a field asks for what the recipe's engine has no part for."""
    name, offered = recipe.train.engine, of(recipe)
    train, memory, parallel = recipe.train, recipe.memory, recipe.parallel
    if parallel.api not in OFFERED[name].apis:
        raise UserError(f"parallel.api: {parallel.api} is a way of paddle; leave it out, or use train.engine=paddle")
    if train.amp_level not in OFFERED[name].amp_levels:
        raise UserError(f"train.amp_level: {train.amp_level} is a level of paddle; leave it out, or use train.engine=paddle")
    found = {
        f"train.amp_level: {train.amp_level}": train.amp_level not in offered.amp_levels,
        f"train.amp_level: {train.amp_level} with zero_stage 3": train.amp_level == "O2" and parallel.zero_stage == 3,
        f"parallel.pipeline: {parallel.pipeline}": parallel.pipeline > 1 and not offered.pipelines,
        f"parallel.zero_stage: {parallel.zero_stage}": parallel.zero_stage not in offered.zero_stages,
        "parallel.sequence_parallel: true": parallel.sequence_parallel and not offered.sequence_parallel,
        f"parallel.schedule: {parallel.schedule}": parallel.schedule not in offered.schedules,
        "train.compile: true in several processes": train.compile and parallel.processes > 1 and not offered.compiled_layouts,
        "train.compile: true with parallel.tensor": train.compile and parallel.tensor > 1 and not offered.compiled_splits,
        "train.compile: true with zero_stage 3": train.compile and parallel.zero_stage == 3 and not offered.compiled_splits,
        f"memory.recompute: {memory.recompute}": memory.recompute not in offered.recomputes,
        f"memory.offload_optimizer: {memory.offload_optimizer}": memory.offload_optimizer != "none" and not offered.offload,
        f"memory.offload_parameters: {memory.offload_parameters}": memory.offload_parameters != "none" and not offered.offload,
        f"train.objective: {train.objective}": train.objective not in offered.objectives,
        "watch.memory: true": recipe.watch.memory and not offered.meter,
        f"watch.profile: {recipe.watch.profile} with train.compile": recipe.watch.profile is not None
        and train.compile
        and not offered.compiled_profiles,
    }
    whose, other = f"the {name} engine", "train.engine=torch"
    if parallel.api != "fleet":
        whose, other = f"parallel.api {parallel.api}", "parallel.api=fleet"
    for field, there in found.items():
        if there:
            raise UserError(f"{field} is not part of {whose} yet; use {other}, or leave it out")
    if train.lora is not None:
        for field in sorted(set(Offered.adapters) - set(offered.adapters)):
            if (value := getattr(train.lora, field)) != type(train.lora).model_fields[field].default:
                raise UserError(f"train.lora.{field}: {value} is not part of {whose} yet; use {other}, or leave it out")
    least = offered.interleaved_from
    if parallel.schedule == "interleaved" and parallel.pipeline < least:
        raise UserError(
            f"parallel.schedule: interleaved takes {least} pipeline ranks or more in {name}, not {parallel.pipeline}; use 1f1b"
        )
    if train.device == "cpu" and train.precision not in offered.cpu_precisions:
        raise UserError(
            f"train.precision: {train.precision} has no matrix products in {name} on a CPU; use fp32, or train.engine=torch"
        )
