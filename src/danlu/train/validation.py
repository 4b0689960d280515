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


def held_out_loss(recipe: Recipe, engine: Engine, prepared: Prepared) -> tuple[float, int]:
    """(nats a token, supervised tokens) of the first ``train.evaluate_tokens``; NaN and 0 where nothing is held out."""
    total, tokens = 0.0, 0
    for batch in held_out(recipe, prepared):
        nats, supervised = engine.evaluate(batch)
        total, tokens = total + nats, tokens + supervised
    return (total / tokens if tokens else math.nan), tokens
