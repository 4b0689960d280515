"""A second model that training leans on: whether it is still the one that it was, and where its answers are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from danlu.data import likeliest
from danlu.data.batches import TrainingBatches
from danlu.data.likeliest import Likeliest, Made
from danlu.data.prepared import Prepared
from danlu.errors import UserError
from danlu.files import sampled_sha256
from danlu.model.counts import flops_per_token
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.recipe.resolve import folder_shape
from danlu.recipe.second import teacher_shape


def batches(recipe: Recipe, prepared: Prepared, rank: int = 0, world_size: int = 1, **more: Any) -> TrainingBatches:
    """Those of a data rank."""
    return TrainingBatches(
        prepared.train,
        sequence_length=recipe.data.sequence_length,
        global_batch=recipe.train.global_batch,
        micro_batch=recipe.micro_batch,
        document_mask=recipe.data.document_mask,
        seed=recipe.train.seed,
        rank=rank,
        world_size=world_size,
        **more,
    )


def folder(recipe: Recipe) -> Path | None:
    """Where the answers of the recipe's teacher are kept; None: they are not."""
    distill = recipe.train.distill
    if recipe.train.objective != "distill" or distill is None or distill.cache is None:
        return None
    return Path(distill.cache).expanduser()


def fingerprint(model: Path) -> str:
    """Of the shape and the weights in a folder."""
    return sampled_sha256([model / "config.json", *sorted(model.glob("*.safetensors"))])


def wanted(recipe: Recipe, prepared: Prepared) -> Made | None:
    """What the answers must have been made from; None where the teacher is not here."""
    distill = recipe.train.distill
    assert distill is not None
    teacher = Path(distill.teacher).expanduser()
    if not teacher.is_dir():
        return None
    vocabulary = folder_shape(teacher, ("train", "distill", "teacher")).vocab_size
    if distill.top_k >= vocabulary:
        raise UserError(f"train.distill.top_k: {distill.top_k} is not below the teacher's {vocabulary:,} tokens")
    return Made(teacher=fingerprint(teacher), vocabulary=vocabulary, **_of_run(recipe, prepared))


def _of_run(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    assert recipe.train.distill is not None
    return {
        "data": prepared.fingerprint,
        "tokenizer": prepared.index["tokenizer"]["sha256"],
        "sequence_length": recipe.data.sequence_length,
        "document_mask": recipe.data.document_mask,
        "samples": batches(recipe.alone, prepared).samples,
        "top_k": recipe.train.distill.top_k,
        "temperature": recipe.train.distill.temperature,
    }


def opened(recipe: Recipe, prepared: Prepared) -> Likeliest | None:
    """The answers of the recipe's teacher; None: none are asked for, or they are not complete.

    UserError: they are of another teacher, where that is here, or to other samples.
    """
    place = folder(recipe)
    if place is None or (there := likeliest.found(place)) is None:
        return None
    known = wanted(recipe, prepared) or there.made._replace(**_of_run(recipe, prepared))
    likeliest.check(place, there.made, known)
    return there


def required(recipe: Recipe, prepared: Prepared) -> Likeliest | None:
    """The answers to train by; None: none are asked for. UserError: they are not complete, or see ``opened``."""
    if (there := opened(recipe, prepared)) is None and (place := folder(recipe)) is not None:
        way_out = "`danlu train` asks the teacher, where it starts the processes itself"
        raise UserError(f"train.distill.cache: {place} is not complete; {way_out}")
    return there


def second(recipe: Recipe, answers: Likeliest | None) -> str | None:
    """The fingerprint of the second model that training leans on; None: there is none."""
    if answers is not None:
        return answers.made.teacher
    train = recipe.train
    if train.objective == "distill" and train.distill is not None:
        return fingerprint(Path(train.distill.teacher).expanduser())
    if train.objective == "dpo" and train.lora is None:
        return fingerprint(Path(str(recipe.model.hugging_face)).expanduser())
    return None


def flops_a_token(recipe: Recipe, shape: ModelShape) -> float:
    """Of a step: of the model that is trained, with what it draws itself, and of a second one that runs beside it."""
    train, length = recipe.train, recipe.data.sequence_length
    found = flops_per_token(shape, length, frozen=train.lora is not None)
    if train.objective == "distill" and folder(recipe) is None:
        assert train.distill is not None
        drawn = train.distill.on_policy * flops_per_token(shape, length)
        return found + (flops_per_token(teacher_shape(recipe, shape), length) + drawn) / 3
    return found + (flops_per_token(shape, length) / 3 if train.objective == "dpo" else 0.0)


def check_second(recipe: Recipe, path: Path, before: str | None, now: str | None) -> None:
    """UserError: a checkpoint leaned on another second model than the one that is there now."""
    if before is None or before == now:
        return
    name = "train.distill.teacher" if recipe.train.objective == "distill" else "model.hugging_face"
    raise UserError(
        f"{name}: the folder holds another model than the one that {path} was trained beside; "
        "bring that back, or train under another name"
    )
