"""A step takes far more tokens than models of this size gain from, or than there are."""

from __future__ import annotations

import numpy as np

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.model.counts import parameter_count

PUBLISHED = {7.6e8: 0.5e6, 1.3e9: 1e6, 6.7e9: 2e6, 1.75e11: 3.2e6}
"""Tokens a step by parameters: GPT-3, arXiv:2005.14165, table 2.1."""
ABOVE = 10.0


def usual(parameters: float) -> float:
    """The published batch for so many parameters, between them on a line in logarithms."""
    return float(np.exp(np.interp(np.log(parameters), np.log(list(PUBLISHED)), np.log(list(PUBLISHED.values())))))


def check(material: Material) -> Finding | None:
    recipe = material.recipe
    length, batch = recipe.data.sequence_length, recipe.train.global_batch
    tokens, most = batch * length, usual(parameter_count(material.need_shape()))
    there = material.prepared.train.tokens if material.prepared is not None else None
    why = []
    largest = batch
    if tokens > ABOVE * most:
        why.append(
            Text(
                f"a step takes {tokens:,} tokens; {most:,.0f} are usual for this size, and beyond the critical batch more tokens "
                "a step save hardly any steps",
                f"每步 {tokens:,} 个 token；该规模常用 {most:,.0f}，超过临界批量后增大批量几乎不再减少步数",
            )
        )
        largest = int(most // length)
    if there is not None and tokens > there:
        why.append(
            Text(
                f"a step takes {tokens:,} tokens and the whole training data has {there:,}: every step repeats samples",
                f"每步 {tokens:,} 个 token，而全部训练数据只有 {there:,}：每一步都有重复样本",
            )
        )
        largest = min(largest, there // length // 10)
    if not why:
        return None
    unit = recipe.parallel.data * recipe.micro_batch
    return Finding(
        "usual_batches",
        Severity.WARNING,
        0.8,
        Text("the batch is too large", "批量过大"),
        tuple(why),
        Text("take a smaller global batch and more steps", "减小全局批量，增加步数"),
        {"train.global_batch": max(1, largest // unit) * unit} if largest >= unit else {},
    )


AUDIT = Audit(
    "usual_batches",
    Text("a batch that such models do not gain from, or that is larger than the data", "对该规模过大、或超过数据总量的批量"),
    "the shape; for the second the prepared data",
    f"{ABOVE:g} times the published tokens a step of that size; more tokens than there are",
    "GPT-3, arXiv:2005.14165, table 2.1; critical batch: McCandlish et al. 2018, arXiv:1812.06162",
    Severity.WARNING,
    check,
    at_start=True,
)
