"""The model that stands beside the one that is trained, and stays as it is: a teacher."""

from __future__ import annotations

from pathlib import Path as FilePath

from danlu.model.shape import ModelShape
from danlu.recipe.explain import Origins, Problem, fail
from danlu.recipe.resolve import folder_shape
from danlu.recipe.sections import Recipe

TEACHER = ("train", "distill", "teacher")


def teacher_shape(recipe: Recipe, shape: ModelShape) -> ModelShape:
    """The teacher's, beside a model of this shape; reads its config.json.

    UserError: it is not there, has other tokens, or does not divide into the layout.
    """
    assert recipe.train.distill is not None
    found = folder_shape(FilePath(recipe.train.distill.teacher).expanduser(), TEACHER)
    problems = []
    if found.vocab_size != shape.vocab_size:
        text = f"has {found.vocab_size:,} rows of embeddings and the model {shape.vocab_size:,}, but both need the same tokens"
        problems.append(Problem(TEACHER, f"{text}; set model.vocab_size to {found.vocab_size}, or name another teacher"))
    degree = recipe.parallel.tensor
    for name, value in (("heads", found.heads), ("kv_heads", found.key_value_heads), ("ffn_size", found.ffn_size)):
        if value % degree:
            problems.append(Problem(("parallel", "tensor"), f"{degree} does not divide the teacher's {name} ({value})"))
    if recipe.data.sequence_length > found.max_sequence_length:
        text = f"is made for {found.max_sequence_length} tokens, below data.sequence_length ({recipe.data.sequence_length})"
        problems.append(Problem(TEACHER, text))
    if problems:
        raise fail(problems, Origins("recipe"))
    return found
