"""A teacher's answers to all samples of a run, asked for once and kept on disk, so that training needs no teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from danlu.data import likeliest
from danlu.data.arrays import Array
from danlu.data.batches import TrainingBatches
from danlu.data.prepared import Prepared
from danlu.errors import UserError
from danlu.files import locked
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.train import taught
from danlu.train.imported import check_teacher

BUSY = "another run asks the teacher just now; wait until it is done, or name another folder in train.distill.cache"


def ask(recipe: Recipe, shape: ModelShape, prepared: Prepared, report: Callable[[str], None]) -> None:
    """Fill the folder that the recipe keeps the answers in, unless it is complete already; nothing, if it names none.

    UserError: it holds others, or the teacher is not there.
    """
    folder = taught.folder(recipe)
    if folder is None or taught.opened(recipe, prepared) is not None:
        return
    check_teacher(recipe, prepared)
    with locked(folder, BUSY):
        wanted = taught.wanted(recipe, prepared)
        assert recipe.train.distill is not None
        if wanted is None:
            raise UserError(
                f"train.distill.teacher: {recipe.train.distill.teacher} is no folder, and {folder} has no answers yet"
            )
        source = taught.batches(recipe, prepared)
        made = likeliest.write(folder, wanted, _Asked(recipe, shape, source).answers, report)
    facts = likeliest.facts(folder)
    size = made.made.bytes_per_token * made.made.samples * made.made.sequence_length
    report(
        f"teacher: {wanted.top_k} tokens a place in {facts['bytes_per_token']} bytes ({size / 1e6:,.1f} MB), which have "
        f"{facts['mean_mass']:.1%} of its probability: {folder}"
    )


class _Asked:
    """A teacher that is loaded for the first question."""

    def __init__(self, recipe: Recipe, shape: ModelShape, source: TrainingBatches) -> None:
        self.recipe, self.shape, self.source = recipe, shape, source
        self.teacher: Any = None

    def answers(self, first: int, end: int) -> tuple[Array, Array]:
        """Of samples by number."""
        from danlu.engines.torch.teacher import Teacher

        if self.teacher is None:
            self.teacher = Teacher(self.recipe, self.shape)
        size = self.recipe.micro_batch
        numbers = [np.arange(at, min(at + size, end)) for at in range(first, end, size)]
        found = [self.teacher.likeliest(self.source.of(each)) for each in numbers]
        tokens, logs = (np.concatenate(each) for each in zip(*found, strict=True))
        return tokens, logs
