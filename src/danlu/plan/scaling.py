"""The loss of a size that was not run, from runs of smaller ones, with an interval.

The law is that of Hoffmann et al. (2022, arXiv:2203.15556): loss(N, D) = E + A / N^alpha + B / D^beta for N parameters, D tokens.

A handful of runs does not determine five numbers, and the best fit alone would not say so. So what is found is a posterior: every
law that the runs allow, weighted by how well it fits them and by what is known of such laws. Where runs are few the prior speaks
and the interval is wide; where they are many it no longer matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from danlu.errors import UserError

Array = npt.NDArray[np.float64]

EXPONENT, EXPONENT_SPREAD = 0.35, 0.5
"""Median of the prior of alpha and beta, and standard deviation of their logarithms: 95 % of it is from 0.13 to 0.93.
Published fits: 0.34 and 0.28 (Hoffmann et al. 2022), 0.35 and 0.37 (the same data, Besiroglu et al. 2024, arXiv:2404.10102)."""
NOISE, NOISE_SPREAD = 0.005, 1.0
"""The same of a run's own deviation from the law, relative to the loss: what another seed or an untuned setting changes."""
TAILS = 4.0
"""Degrees of freedom of Student's t, by which a run deviates: a run that went wrong is outvoted, as under a Huber loss."""
PROBABILITY = 0.9
"""Of the intervals."""
WALKERS, ITERATIONS, BURN_IN, STARTS = 120, 1600, 800, 6000
_STRETCH = 2.0
_DIMENSIONS = 6


class Point(NamedTuple):
    """A run: parameters without embeddings, tokens that it was trained on, loss in nats a token."""

    parameters: float
    tokens: float
    loss: float


class Interval(NamedTuple):
    """The median, and the bounds of the central 90 %."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Law:
    """Laws that the runs allow, one an entry of every array, each as likely as the next.

    Losses are `scale` times what the shares add up to, which is 1 in the middle of the runs: (`parameters`, `tokens`).
    """

    parameters: float
    tokens: float
    scale: Array
    shares: Array
    """(samples, 3): of the loss in the middle of the runs, what is irreducible, due to the size, and due to the tokens."""
    alpha: Array
    beta: Array
    noise: Array

    def loss(self, parameters: float, tokens: float) -> Interval:
        """What a run of that size and length would end with, its own deviation from the law included."""
        random = np.random.default_rng(0)
        law = self.scale * _relative(self.shares, self.alpha, self.beta, parameters / self.parameters, tokens / self.tokens)
        return _interval(law * np.exp(self.noise * random.standard_t(TAILS, size=law.shape)))

    @property
    def irreducible(self) -> Interval:
        """E."""
        return _interval(self.scale * self.shares[:, 0])

    @property
    def exponents(self) -> tuple[Interval, Interval]:
        """Alpha, of the parameters, and beta, of the tokens."""
        return _interval(self.alpha), _interval(self.beta)


def fit(points: Sequence[Point]) -> Law:
    """The posterior of the law, given runs of two sizes or more. The same runs give the same answer.

    The prior: each share of the loss in the middle of the runs as likely as any other (uniform on the simplex), and the constants
    above. It is sampled by affine-invariant moves (Goodman & Weare 2010), which need no tuning, from the best of thousands of
    starts. UserError: fewer than two sizes.
    """
    if len({point.parameters for point in points}) < 2:
        raise UserError("--from-runs: runs of two sizes or more are needed, and these are of one; train another size")
    sizes, tokens, losses = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    middle = float(np.exp(np.log(sizes).mean())), float(np.exp(np.log(tokens).mean()))
    data = (sizes / middle[0], tokens / middle[1], np.log(losses))
    kept = _thinned(_sample(*data, np.random.default_rng(0)))
    scale, shares, alpha, beta, noise = _unpacked(kept)
    return Law(*middle, scale, shares, alpha, beta, noise)


def _interval(values: Array) -> Interval:
    low, middle, high = np.quantile(values, [(1 - PROBABILITY) / 2, 0.5, (1 + PROBABILITY) / 2])
    return Interval(float(middle), float(low), float(high))


def _relative(shares: Array, alpha: Array, beta: Array, size: Array | float, tokens: Array | float) -> Array:
    """The loss in units of that in the middle of the runs; laws (samples,), runs broadcast behind them."""
    relative: Array = shares[..., 0] + shares[..., 1] * size**-alpha + shares[..., 2] * tokens**-beta
    return relative


def _unpacked(walkers: Array) -> tuple[Array, Array, Array, Array, Array]:
    """(samples, 6) unbounded coordinates as scale, shares, alpha, beta, noise."""
    logits = np.concatenate([np.zeros((len(walkers), 1)), walkers[:, 1:3]], axis=1)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    alpha, beta, noise = np.exp(walkers[:, 3:]).T
    return np.exp(walkers[:, 0]), weights / weights.sum(axis=1, keepdims=True), alpha, beta, noise


def _log_posterior(walkers: Array, size: Array, tokens: Array, log_loss: Array) -> Array:
    """Up to a constant, of each walker."""
    scale, shares, alpha, beta, noise = _unpacked(walkers)
    law = _relative(shares[:, None], alpha[:, None], beta[:, None], size, tokens) * scale[:, None]
    deviation = (log_loss - np.log(law)) / noise[:, None]
    likelihood = -(TAILS + 1) / 2 * np.log1p(deviation**2 / TAILS).sum(axis=1) - len(log_loss) * np.log(noise)
    exponents = (np.log(alpha / EXPONENT) ** 2 + np.log(beta / EXPONENT) ** 2) / EXPONENT_SPREAD**2
    deviations = np.log(noise / NOISE) ** 2 / NOISE_SPREAD**2
    # A uniform simplex in these coordinates has the product of the shares as its density.
    result: Array = likelihood - (exponents + deviations) / 2 + np.log(shares + 1e-300).sum(axis=1)
    return result


def _sample(size: Array, tokens: Array, log_loss: Array, random: np.random.Generator) -> Array:
    """(iterations after the burn-in, walkers, 6)."""
    starts = random.standard_normal((STARTS, _DIMENSIONS))
    starts[:, 0] = log_loss.mean() + 0.05 * starts[:, 0]
    starts[:, 1:3] *= 1.5
    starts[:, 3:5] = np.log(EXPONENT) + EXPONENT_SPREAD * starts[:, 3:5]
    starts[:, 5] = np.log(3 * NOISE) + NOISE_SPREAD * starts[:, 5]
    order = np.argsort(-_log_posterior(starts, size, tokens, log_loss))
    walkers = starts[order[:WALKERS]]
    value = _log_posterior(walkers, size, tokens, log_loss)
    halves, kept = (np.arange(0, WALKERS, 2), np.arange(1, WALKERS, 2)), []
    for iteration in range(ITERATIONS):
        for own, other in (halves, halves[::-1]):
            stretch = ((_STRETCH - 1) * random.random(len(own)) + 1) ** 2 / _STRETCH
            partner = walkers[random.choice(other, len(own))]
            proposed = partner + stretch[:, None] * (walkers[own] - partner)
            new = _log_posterior(proposed, size, tokens, log_loss)
            better = np.log(random.random(len(own))) < (_DIMENSIONS - 1) * np.log(stretch) + new - value[own]
            walkers[own[better]], value[own[better]] = proposed[better], new[better]
        if iteration >= BURN_IN:
            kept.append(walkers.copy())
    return np.array(kept)


def _thinned(chain: Array) -> Array:
    """Every tenth iteration, as one list of samples."""
    return chain[::10].reshape(-1, _DIMENSIONS)
