"""The loss on what is held out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from danlu.data.batches import evaluation_batches
from danlu.data.prepared import Prepared
from danlu.engines.base import Batch, Engine
from danlu.recipe import Recipe


def held_out(recipe: Recipe, prepared: Prepared) -> Iterator[Batch]:
    """The batches of a validation, the same ones at every call."""
    return evaluation_batches(
        prepared.validation,
        sequence_length=recipe.data.sequence_length,
        batch=recipe.train.global_batch,
        document_mask=recipe.data.document_mask,
        max_tokens=recipe.train.evaluate_tokens,
    )


def held_out_loss(recipe: Recipe, engine: Engine, prepared: Prepared) -> tuple[float, int, dict[str, float]]:
    """(loss, tokens or pairs, what else the objective measures) of the first ``train.evaluate_tokens``, all as means.

    NaN and 0 where nothing is held out.
    """
    total, count = 0.0, 0
    sums: dict[str, float] = {}
    for batch in held_out(recipe, prepared):
        loss, counted, measured = engine.judge(batch)
        total, count = total + loss, count + counted
        sums = {name: sums.get(name, 0.0) + value for name, value in measured.items()}
    return (total / count if count else math.nan), count, {name: value / count for name, value in sums.items() if count}
