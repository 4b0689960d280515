"""Whether micro-batches add up to the batch: the gradient of two samples, one after the other and both at once."""

from __future__ import annotations

import math

import numpy as np

from danlu.data.arrays import Array
from danlu.engines.base import Engine
from danlu.recipe import Recipe
from danlu.recipe.train_sections import BESIDE
from danlu.train.invariants.batch import IGNORED, rows

PASSES = 3
"""Forward passes over the rows of the other probes that it costs: forward and backward, twice, over half of their tokens."""
PART = 8
"""The second sample has a target at so many of its tokens, so that it must count for as much less than the first."""


class Accumulation:
    """The question, asked of an engine. All processes ask it at the same steps.

    It is not asked where steps are not accumulated, or where other sizes of a micro-batch than the recipe's mean something else:
    a pipeline's schedule is made for their number, and compiled code for their shape. Nor of a loss with a second model in it.
    """

    def __init__(self, engine: Engine, recipe: Recipe) -> None:
        self.engine = engine
        plain = recipe.train.objective not in BESIDE and not recipe.train.compile
        self.asked = recipe.accumulation > 1 and recipe.parallel.pipeline == 1 and plain
        half = recipe.data.sequence_length // 2
        self.length = half - half % recipe.parallel.tensor

    def measure(self, batch: dict[str, Array]) -> dict[str, float]:
        """Of two samples of a whole global batch, for each data rank, cut to half: together no more tokens than one of it.

        ``probe/accumulated``: gradient norm of the two one after the other / that of both at once. Their targets are made up to
        make the gradients unlike each other.
        """
        if not self.asked:
            return {}
        first = 2 * self.engine.data_rank
        samples = batch["samples"].reshape(-1)[first : first + 2]
        two = {
            name: np.ascontiguousarray(rows(array)[first : first + 2, : self.length])
            for name, array in batch.items()
            if name != "samples"
        }
        targets = np.roll(two["inputs"], -1, axis=1)
        targets[1] = IGNORED
        targets[1, ::PART] = targets[0, 0]
        two["targets"] = targets
        apart = {name: array[:, None] for name, array in two.items()} | {"samples": samples[:, None]}
        together = {name: array[None] for name, array in two.items()} | {"samples": samples[None]}
        one = self.engine.gradient_norm(together)
        return {"probe/accumulated": self.engine.gradient_norm(apart) / one if one else math.nan}
