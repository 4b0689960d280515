"""A model at several widths, and whether what it computes moves as far at all of them: the coordinate check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from danlu.model.shape import ModelShape
from danlu.plan.verdict import table
from danlu.recipe import Recipe, resolve_shape
from danlu.recipe.train_sections import MemorySection, ParallelSection

STEPS = 4
FACTORS, WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4), 4
"""Multiples of the recipe's width that are tried, and how many: the smallest that its heads divide into."""
FLAT = 0.25
"""Powers of the width below which a part counts as moving equally far. Without µP some part grows with a power of 1/2 or more."""
SEQUENCE = 64
"""Tokens a sample, at most: the check is of widths."""


def widened(shape: ModelShape, factor: float) -> ModelShape:
    """The same shape so many times as wide, with as many times more heads of the same size. ValueError: it does not divide."""
    sizes = {
        "hidden_size": shape.hidden_size,
        "ffn_size": shape.ffn_size,
        "heads": shape.heads,
        "kv_heads": shape.key_value_heads,
    }
    scaled = {name: value * factor for name, value in sizes.items()}
    if any(value != int(value) or value < 1 for value in scaled.values()):
        raise ValueError(f"{factor} does not divide the shape")
    whole = {name: int(value) for name, value in scaled.items()}
    return ModelShape(**shape.model_dump() | whole | {"head_size": shape.head_dim})


def growth(widths: Sequence[float], sizes: Sequence[float]) -> float:
    """The power of the width that the sizes grow with: the slope of the line through their logarithms."""
    x, y = [math.log(width) for width in widths], [math.log(size) for size in sizes]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def coordinate_check(recipe: Recipe) -> dict[str, Any]:
    """What a few steps move each part of the model by, at the recipe's width and others, and the power it grows with.

    {mup, learning_rate, steps, widths, parts: {name: {moved: [a width each], growth}}, worst_growth, flat}
    """
    from danlu.engines.torch.coordinates import moved  # reaches torch

    shape = resolve_shape(recipe, None)
    shapes = [made for factor in FACTORS if (made := _or_none(shape, factor)) is not None][:WIDTHS]
    one = _alone(recipe)
    found = [moved(one, each, STEPS) for each in shapes]
    widths = [each.hidden_size for each in shapes]
    by_part = {part: [each[part] for each in found] for part in found[0]}
    powers = {part: growth(widths, sizes) for part, sizes in by_part.items()}
    worst = max(powers.values())
    return {
        "mup": recipe.model.mup is not None,
        "learning_rate": recipe.train.optimizer.learning_rate,
        "steps": STEPS,
        "widths": widths,
        "parts": {part: {"moved": sizes, "growth": powers[part]} for part, sizes in by_part.items()},
        "worst_growth": worst,
        "flat": worst < FLAT,
    }


def _or_none(shape: ModelShape, factor: float) -> ModelShape | None:
    try:
        return widened(shape, factor)
    except ValueError:
        return None


def _alone(recipe: Recipe) -> Recipe:
    """For one process in FP32, whole batches and short samples, without what would add noise or take time to compile."""
    data = recipe.data.model_copy(update={"sequence_length": min(recipe.data.sequence_length, SEQUENCE)})
    train = recipe.train.model_copy(update={"dropout": 0.0, "compile": False, "precision": "fp32"})
    return recipe.model_copy(update={"parallel": ParallelSection(), "memory": MemorySection(), "data": data, "train": train})


def lines(check: dict[str, Any]) -> list[str]:
    """The answer for a person, the verdict first."""
    power = f"the most that a part grows with is width^{check['worst_growth']:.2f}"
    if check["flat"]:
        said = f"flat     {check['steps']} steps move every part about as far at each width ({power})"
    else:
        way_out = "check model.mup.base_hidden_size" if check["mup"] else "set model.mup, or find the rate anew for each width"
        said = f"grows    {check['steps']} steps move a wider model further ({power}); {way_out}"
    head = ("moves by", *(f"width {width}" for width in check["widths"]), "grows with")
    rows = [
        [part, *(f"{value:.3g}" for value in each["moved"]), f"width^{each['growth']:.2f}"]
        for part, each in check["parts"].items()
    ]
    return [said, "", *table(head, rows)]
