"""Training of a linear model on two sets of texts, its calibration, and what it is worth on texts it has not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.linear.model import Linear, characters, sigmoid
from danlu.data.dedup.fold import table
from danlu.errors import UserError

BITS = 18
"""2^18 features."""
PASSES = 8
RATE = 0.5
DECAY = 1e-7
HELD_OUT = 0.2
"""Share of the texts, chosen by a hash of each, that is held out: one half calibrates, the other measures."""
LEAST = 20
"""Texts of a class below which nothing is trained."""


def fit(texts: Sequence[str], targets: Array, seed: int = 0, bits: int = BITS) -> Linear:
    """A model of P(target = 1), trained on four fifths of the texts; both classes weigh the same.

    targets (texts,) 0 or 1. Copies of a text are taken once, so that none is both trained on and held out. The same texts and
    seed give the same model.

    Raises:
        UserError: a class has fewer than LEAST different texts.
    """
    texts, targets = _once(texts, targets)
    for number, name in enumerate(("bad", "good")):
        if (count := int((targets == number).sum())) < LEAST:
            raise UserError(f"{count} different texts of the {name} class; at least {LEAST} are needed")
    places = np.array([place(text) for text in texts])
    rows = np.arange(len(texts))
    trained, calibrated = rows[places >= HELD_OUT], rows[places < HELD_OUT / 2]
    tested = rows[(places < HELD_OUT) & (places >= HELD_OUT / 2)]
    raw = _weights(texts, targets, trained, seed, bits)
    slope, shift = platt(raw.logits([texts[row] for row in calibrated]), targets[calibrated])
    facts = {"texts": len(texts), "good": int(targets.sum()), "trained": len(trained), "held_out": len(tested)}
    model = Linear(raw.weights, raw.bias, slope, shift, facts)
    return Linear(
        raw.weights, raw.bias, slope, shift, facts | measured(model.chances([texts[i] for i in tested]), targets[tested])
    )


def measured(chances: Array, targets: Array, threshold: float = 0.5) -> dict[str, float | None]:
    """AUC, and precision and recall of the class 1 at a threshold; None where a class is missing."""
    said = chances >= threshold
    right = float((said & (targets == 1)).sum())
    area = auc(chances, targets)
    return {
        "auc": None if np.isnan(area) else round(area, 4),
        "precision": round(right / float(said.sum()), 4) if said.any() else None,
        "recall": round(right / float((targets == 1).sum()), 4) if (targets == 1).any() else None,
        "calibration_error": round(calibration_error(chances, targets), 4),
    }


def auc(scores: Array, targets: Array) -> float:
    """Area under the ROC curve: chance that one of class 1 scores above one of class 0, ties counting half (Mann-Whitney U)."""
    positive = targets == 1
    if positive.all() or not positive.any():
        return float("nan")
    _, at, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[at]
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def calibration_error(chances: Array, targets: Array, bins: int = 10) -> float:
    """Expected calibration error: |mean chance - share of class 1| over bins of equal width, by their size (Guo et al. 2017)."""
    at = np.minimum((chances * bins).astype(int), bins - 1)
    return float(sum(abs((chances[at == b] - targets[at == b]).sum()) for b in range(bins)) / max(1, len(chances)))


def platt(logits: Array, targets: Array) -> tuple[float, float]:
    """Slope and shift that make sigmoid(slope * logit + shift) a chance, by Newton's method on Platt's smoothed targets (1999).

    A slope is positive: calibration does not turn the order around.
    """
    good, bad = float((targets == 1).sum()), float((targets == 0).sum())
    if not good or not bad:
        return 1.0, 0.0
    wanted = np.where(targets == 1, (good + 1) / (good + 2), 1 / (bad + 2))
    design = np.stack([logits, np.ones_like(logits)], 1)
    found = np.array([1.0, 0.0])
    for _ in range(50):
        chance = sigmoid(design @ found)
        gradient = design.T @ (chance - wanted) + 1e-3 * (found - [1.0, 0.0])
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design + 1e-3 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        found -= np.clip(step, -1, 1)
        if abs(step).max() < 1e-9:
            break
    return max(float(found[0]), 1e-3), float(found[1])


def _once(texts: Sequence[str], targets: Array) -> tuple[list[str], Array]:
    first: dict[str, int] = {}
    for number, text in enumerate(texts):
        first.setdefault(text, number)
    once: Array = np.asarray(targets, np.float64)[list(first.values())]
    return list(first), once


def place(text: str) -> float:
    """Where a text stands among all, by a hash of it, in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]) / 2**64


def _weights(texts: Sequence[str], targets: Array, rows: Array, seed: int, bits: int) -> Linear:
    from danlu.data.curate.linear import kernels

    codes, ends = characters([texts[row] for row in rows])
    wanted = targets[rows]
    share = wanted.mean()
    importance = np.where(wanted == 1, 0.5 / share, 0.5 / (1 - share))
    weights, squares, bias = np.zeros(1 << bits, np.float32), np.zeros(1 << bits, np.float32), np.zeros(2)
    generator = np.random.default_rng(seed)
    for number in range(PASSES):
        order = generator.permutation(len(rows))
        rate = RATE * (1 - number / PASSES)
        kernels.train(codes, ends, table(), order, wanted, importance, weights, squares, bias, rate, DECAY)
    return Linear(weights.astype(np.float16).astype(np.float32), float(bias[0]))
