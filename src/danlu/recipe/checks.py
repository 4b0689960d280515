"""Contradictions between fields, each with what would work."""

from __future__ import annotations

from itertools import pairwise

from danlu.model.shape import nearest_divisors
from danlu.recipe.explain import Problem
from danlu.recipe.fields import listed
from danlu.recipe.resolve import combine
from danlu.recipe.sections import Recipe
from danlu.recipe.train_sections import BESIDE

_ORDER = {"prepare": 0, "train": 1, "evaluate": 2, "generate": 2, "export": 2}


def contradictions(recipe: Recipe) -> list[Problem]:
    """All that contradicts within a recipe whose fields are valid by themselves. Reads no file."""
    layout = (
        [] if recipe.automatic else [*_batch(recipe), *_layout(recipe), *_memory(recipe), *_samples(recipe)]
    )  # looked at again when the planner has filled it in
    return [
        *_stages(recipe),
        *layout,
        *_steps(recipe),
        *_profile(recipe),
        *_validation(recipe),
        *_objective(recipe),
        *_adapters(recipe),
        *_model(recipe),
    ]


def _stages(recipe: Recipe) -> list[Problem]:
    stages = recipe.stages
    if twice := sorted({stage for stage in stages if stages.count(stage) > 1}):
        return [Problem(("stages",), f"{listed(twice, 'and')} is named twice; name each stage once")]
    in_order = sorted(stages, key=lambda stage: _ORDER[stage])
    if [_ORDER[stage] for stage in stages] != [_ORDER[stage] for stage in in_order]:
        late = next(later for earlier, later in pairwise(stages) if _ORDER[later] < _ORDER[earlier])
        early = stages[stages.index(late) - 1]
        return [Problem(("stages",), f"{early} stands before {late}, which it needs; write [{', '.join(in_order)}]")]
    return []


def _objective(recipe: Recipe) -> list[Problem]:
    train, problems = recipe.train, []
    name, plain = train.objective, train.samples == "text"
    if name == "distill" and train.distill is None:
        problems.append(Problem(("train", "distill"), "distill needs a teacher; name its folder in train.distill.teacher"))
    if name != "pretrain" and recipe.data.tokenizer.path is None:
        whose = "the teacher" if name == "distill" else "a model that is trained already"
        text = f"{name} needs the tokenizer of {whose}; give data.tokenizer.path"
        problems.append(Problem(("train", "objective"), text))
    if recipe.data.curate is not None and not plain:
        problems.append(Problem(("data", "curate"), f"chooses plain documents, and {name} reads {train.samples}; leave it out"))
    if name in BESIDE and recipe.parallel.pipeline > 1:
        text = f"{recipe.parallel.pipeline} has no place yet for the second model of {name}; give 1, and data or tensor ranks"
        problems.append(Problem(("parallel", "pipeline"), text))
    if name == "distill" and train.distill is not None and train.distill.on_policy:
        others = {"train.distill.cache": train.distill.cache is not None, "train.compile": train.compile}
        others["parallel.sequence_parallel"] = recipe.parallel.sequence_parallel
        for other in (field for field, there in others.items() if there):
            text = f"{train.distill.on_policy:g} has the model write token by token, which goes with no {other}; leave one out"
            problems.append(Problem(("train", "distill", "on_policy"), text))
    if name == "dpo" and recipe.model.hugging_face is None:
        problems.append(Problem(("train", "objective"), "dpo starts from a trained model; name it in model.hugging_face"))
    if name == "dpo" and not recipe.data.document_mask:
        problems.append(Problem(("data", "document_mask"), "false would let an answer see the other of its pair; leave it out"))
    return problems


def _adapters(recipe: Recipe) -> list[Problem]:
    lora, problems = recipe.train.lora, []
    if lora is not None and recipe.model.hugging_face is None:
        problems.append(Problem(("train", "lora"), "adapts a trained model; name it in model.hugging_face"))
    if lora is not None and lora.base == "int8" and recipe.memory.offload_parameters != "none":
        text = f"int8 weights cannot be offloaded to {recipe.memory.offload_parameters}; leave memory.offload_parameters out"
        problems.append(Problem(("train", "lora", "base"), text))
    return problems


def _batch(recipe: Recipe) -> list[Problem]:
    problems = []
    total, ranks, micro = recipe.train.global_batch, recipe.parallel.data, recipe.memory.micro_batch
    if micro is None and total % ranks:
        text = f"{total} is not divisible by parallel.data ({ranks}); give {_nearest_multiples(total, ranks)}"
        problems.append(Problem(("train", "global_batch"), text))
    if micro is not None and total % (micro * ranks):
        by = f"memory.micro_batch ({micro})" + (f" x parallel.data ({ranks})" if ranks > 1 else "")
        text = f"{total} is not divisible by {by}; give train.global_batch {_nearest_multiples(total, micro * ranks)}"
        if total % ranks == 0:
            text += f", or memory.micro_batch {listed([str(each) for each in nearest_divisors(total // ranks, micro)], 'or')}"
        problems.append(Problem(("train", "global_batch"), text))
    return problems


def _layout(recipe: Recipe) -> list[Problem]:
    """A layout that no number of processes could run; what depends on the model is in resolve."""
    parallel, problems = recipe.parallel, []
    if parallel.zero_stage and parallel.data == 1:
        problems.append(
            Problem(
                ("parallel", "zero_stage"),
                f"{parallel.zero_stage} splits over data ranks; give parallel.data 2 or more, or zero_stage 0",
            )
        )
    if parallel.sequence_parallel and parallel.tensor == 1:
        problems.append(
            Problem(
                ("parallel", "sequence_parallel"), "splits over tensor ranks; give parallel.tensor 2 or more, or leave it out"
            )
        )
    if parallel.sequence_parallel and recipe.data.sequence_length % parallel.tensor:
        text = (
            f"{recipe.data.sequence_length} is not divisible by parallel.tensor ({parallel.tensor}), as sequence_parallel needs"
        )
        problems.append(
            Problem(
                ("data", "sequence_length"), f"{text}; give {_nearest_multiples(recipe.data.sequence_length, parallel.tensor)}"
            )
        )
    if parallel.schedule != "1f1b":
        problems += _schedule(recipe)
    elif parallel.pipeline > 1 and recipe.train.global_batch % parallel.data == 0 and recipe.accumulation < parallel.pipeline:
        problems.append(_too_few_micro_batches(recipe))
    if parallel.pipeline > 1 and parallel.zero_stage == 2:
        text = "2 with a pipeline would reduce whole gradients after every micro-batch; give 1, or 3"
        problems.append(Problem(("parallel", "zero_stage"), text))
    return problems


def _schedule(recipe: Recipe) -> list[Problem]:
    """What the schedules with several stages a rank need."""
    parallel, name = recipe.parallel, recipe.parallel.schedule
    problems = []
    if parallel.pipeline == 1:
        text = f"{name} orders a pipeline; give parallel.pipeline 2 or more, or leave it out"
        problems.append(Problem(("parallel", "schedule"), text))
    elif recipe.train.global_batch % parallel.data == 0 and recipe.accumulation % parallel.pipeline:
        text = f"{name} runs micro-batches in rounds of parallel.pipeline ({parallel.pipeline})"
        way_out = "choose memory.micro_batch such that it divides"
        problems.append(Problem(("parallel", "schedule"), f"{text}, and a step has {recipe.accumulation}; {way_out}"))
    if name == "zero-bubble":
        # Each pass would recompute anew, gather the parameters of ZeRO 3 anew, and need a graph of its own.
        clashes = {
            f"memory.recompute ({recipe.memory.recompute})": recipe.memory.recompute != "none",
            "train.compile": recipe.train.compile,
            f"parallel.zero_stage ({parallel.zero_stage})": parallel.zero_stage >= 2,
        }
        if found := [field for field, there in clashes.items() if there]:
            text = f"zero-bubble splits the backward pass in two, which {listed(found, 'and')} cannot follow"
            problems.append(Problem(("parallel", "schedule"), f"{text}; give 1f1b or interleaved, or leave the other out"))
    return problems


def _memory(recipe: Recipe) -> list[Problem]:
    """Offload and the meter beside what they cannot work with."""
    memory, problems = recipe.memory, []
    if memory.offload_parameters != "none" and recipe.parallel.zero_stage < 3:
        text = f"{memory.offload_parameters} is for the shards of ZeRO 3; give parallel.zero_stage 3, or none"
        problems.append(Problem(("memory", "offload_parameters"), text))
    if memory.offload_parameters == "disk" and recipe.train.compile:
        text = "disk lets go of each layer as it ends, which train.compile does not see; keep one of the two"
        problems.append(Problem(("memory", "offload_parameters"), text))
    if recipe.watch.memory and recipe.train.compile:
        text = "true meters operator by operator, which train.compile fuses; keep one of the two"
        problems.append(Problem(("watch", "memory"), text))
    return problems


def _samples(recipe: Recipe) -> list[Problem]:
    """A model that is split or compiled for training steps cannot take token by token."""
    clashes = {
        "train.compile": recipe.train.compile,
        "parallel.sequence_parallel": recipe.parallel.sequence_parallel,
        f"parallel.schedule ({recipe.parallel.schedule})": recipe.parallel.schedule != "1f1b",
        f"memory.offload_parameters ({recipe.memory.offload_parameters})": recipe.memory.offload_parameters != "none",
    }
    found = [field for field, there in clashes.items() if there]
    if not recipe.generate.every or not found:
        return []
    text = f"{recipe.generate.every} takes the model token by token, beside which {listed(found, 'and')} cannot be"
    return [Problem(("generate", "every"), f"{text}; give 0, or leave the other out")]


def _too_few_micro_batches(recipe: Recipe) -> Problem:
    ranks, share = recipe.parallel.pipeline, recipe.train.global_batch // recipe.parallel.data
    has = f"{ranks} ranks work on as many micro-batches at a time, and a step has {recipe.accumulation}"
    if share < ranks:
        return Problem(("parallel", "pipeline"), f"{has}; give train.global_batch {ranks * recipe.parallel.data} or more")
    return Problem(("parallel", "pipeline"), f"{has}; give memory.micro_batch {nearest_divisors(share, share // ranks)[0]}")


def _nearest_multiples(value: int, factor: int) -> str:
    low = value // factor * factor
    return listed([str(multiple) for multiple in (low, low + factor) if multiple > 0], "or")


def _steps(recipe: Recipe) -> list[Problem]:
    warmup, steps = recipe.train.schedule.warmup_steps, recipe.train.steps
    if warmup is None or warmup <= steps:
        return []
    usual = f"5-10 % are usual ({-(-steps // 20)} to {max(1, steps // 10)})" if steps >= 20 else f"give at most {steps}"
    text = f"{warmup} is more than train.steps ({steps}), so the peak learning rate would never be reached; {usual}"
    return [Problem(("train", "schedule", "warmup_steps"), text)]


def _profile(recipe: Recipe) -> list[Problem]:
    if recipe.watch.profile is None or (recipe.watch.profiled and recipe.watch.profiled[-1] <= recipe.train.steps):
        return []
    steps = recipe.train.steps
    text = f"{recipe.watch.profile} names no steps of a run of {steps}; give first:last, such as {max(1, steps // 2)}:{steps}"
    return [Problem(("watch", "profile"), text)]


def _validation(recipe: Recipe) -> list[Problem]:
    if recipe.data.validation_fraction > 0:
        return []
    wants = []
    if recipe.train.evaluate_every:
        wants.append(f"train.evaluate_every ({recipe.train.evaluate_every})")
    if "evaluate" in recipe.stages:
        wants.append("the stage evaluate" + (" (a default)" if "stages" not in recipe.model_fields_set else ""))
    if not wants:
        return []
    text = (
        f"0 holds nothing out, but {listed(wants, 'and')} measures on held-out text; give 0.01, or leave evaluation out of both"
    )
    return [Problem(("data", "validation_fraction"), text)]


def _model(recipe: Recipe) -> list[Problem]:
    model, tokenizer = recipe.model, recipe.data.tokenizer
    if model.preset is not None and model.hugging_face is not None:
        text = "given beside model.hugging_face, which has its own shape; keep one of the two"
        return [Problem(("model", "preset"), text)]
    if model.hugging_face is not None:
        if tokenizer.path is None and tokenizer.train is None:
            text = f"the weights in model.hugging_face know their own tokens; write path: {model.hugging_face}"
            return [Problem(("data", "tokenizer"), f"{text} (or train a new one, by writing train: with its vocab_size)")]
        return []  # the rest needs config.json: resolve_shape
    # Before the tokenizer is there its size may be unknown; any size shows the other contradictions.
    return combine(recipe, None if tokenizer.training is not None else model.vocab_size or 1)[1]
