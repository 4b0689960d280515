"""The law of loss over size and tokens, on runs drawn from known laws; and the best learning rate of sweeps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from danlu.errors import UserError
from danlu.plan.rates import AtSize, Best, Swept, best_rate, carried
from danlu.plan.scaling import PROBABILITY, Point, fit

CHINCHILLA = {"irreducible": 1.69, "a": 406.4, "b": 410.7, "alpha": 0.34, "beta": 0.28}
"""Hoffmann et al. 2022, equation 10."""


def law(size: float, tokens: float, irreducible: float, a: float, b: float, alpha: float, beta: float) -> float:
    return irreducible + a / size**alpha + b / tokens**beta


def runs(sizes: list[float], ratios: list[float], noise: float, seed: int, terms: dict[str, float]) -> list[Point]:
    """One run for each size and number of tokens a parameter."""
    random = np.random.default_rng(seed)
    places = [(size, size * ratio) for size in sizes for ratio in ratios]
    return [Point(*place, law(*place, **terms) * math.exp(noise * random.standard_normal())) for place in places]


def test_the_law_is_recovered_from_many_runs_of_little_noise() -> None:
    found = fit(runs([1e7, 3e7, 1e8, 3e8, 1e9], [3, 10, 30, 100, 300], 3e-4, 0, CHINCHILLA))
    alpha, beta = found.exponents
    assert alpha.middle == pytest.approx(0.34, abs=0.01)
    assert beta.middle == pytest.approx(0.28, abs=0.01)
    assert found.irreducible.middle == pytest.approx(1.69, abs=0.03)
    assert alpha.low < 0.34 < alpha.high and found.irreducible.low < 1.69 < found.irreducible.high
    ahead = found.loss(7e10, 1.4e12)
    assert ahead.middle == pytest.approx(law(7e10, 1.4e12, **CHINCHILLA), rel=0.01)


@pytest.mark.slow
def test_the_interval_covers_at_its_stated_rate() -> None:
    """Laws drawn from what is believed of them, six runs of each, ten times the largest run ahead."""
    random, covered, trials = np.random.default_rng(5), 0, 30
    for seed in range(trials):
        shares = random.dirichlet([1, 1, 1])
        alpha, beta = 0.35 * np.exp(0.5 * random.standard_normal(2))
        terms = {"alpha": alpha, "beta": beta, "irreducible": 3 * shares[0]}
        terms |= {"a": 3 * shares[1] * 3e7**alpha, "b": 3 * shares[2] * 5e8**beta}
        found = fit(runs([1e7, 3e7, 1e8], [8, 40], 0.005, seed, terms)).loss(1e9, 2e10)
        truth = law(1e9, 2e10, **terms) * math.exp(0.005 * random.standard_normal())
        covered += found.low <= truth <= found.high
    # Binomial: 99.9 % of such series lie within.
    slack = 3.3 * math.sqrt(PROBABILITY * (1 - PROBABILITY) / trials)
    assert PROBABILITY - slack <= covered / trials <= 1.0


def test_less_is_known_of_what_is_further_away_and_from_fewer_runs() -> None:
    many = fit(runs([1e7, 3e7, 1e8], [10, 40], 0.003, 1, CHINCHILLA))
    few = fit(runs([1e7, 1e8], [20], 0.003, 1, CHINCHILLA))

    def width(found: object, size: float) -> float:
        interval = found.loss(size, 20 * size)  # type: ignore[attr-defined]
        return (interval.high - interval.low) / interval.middle

    assert width(many, 1e8) < width(many, 1e9) < width(many, 1e11)
    assert width(many, 1e9) < 0.7 * width(few, 1e9)
    truth = law(1e9, 2e10, **CHINCHILLA)
    assert few.loss(1e9, 2e10).low < truth < few.loss(1e9, 2e10).high


def test_a_run_that_went_wrong_is_outvoted() -> None:
    sound = runs([1e7, 2e7, 5e7, 1e8], [5, 20, 80], 0.002, 2, CHINCHILLA)
    broken = [*sound[:5], sound[5]._replace(loss=1.3 * sound[5].loss), *sound[6:]]
    truth = law(1e9, 2e10, **CHINCHILLA)
    assert fit(broken).loss(1e9, 2e10).middle == pytest.approx(truth, rel=0.02)


def test_the_same_runs_give_the_same_answer() -> None:
    points = runs([1e7, 1e8], [20], 0.003, 1, CHINCHILLA)
    assert fit(points).loss(1e9, 2e10) == fit(points).loss(1e9, 2e10)


def test_one_size_is_too_few() -> None:
    with pytest.raises(UserError, match="two sizes"):
        fit(runs([1e7], [10, 20, 40], 0.003, 1, CHINCHILLA))


def test_the_best_rate_is_the_vertex_of_the_parabola() -> None:
    """On a parabola in log(rate) three unevenly spaced runs give its vertex exactly."""
    best = best_rate([Swept(rate, 3 + 0.2 * math.log(rate / 2e-3) ** 2) for rate in (4e-4, 1e-3, 5e-3, 2e-2)])
    assert best.rate == pytest.approx(2e-3)
    assert (best.low, best.high, best.inside) == (4e-4, 5e-3, True)


def test_edges_and_divergence() -> None:
    at_the_edge = best_rate([Swept(1e-3, 3.2), Swept(2e-3, 3.1), Swept(4e-3, 3.0)])
    assert (at_the_edge.rate, at_the_edge.low, at_the_edge.high, at_the_edge.inside) == (4e-3, 2e-3, 8e-3, False)
    beside_divergence = best_rate([Swept(1e-3, 3.2), Swept(2e-3, 3.1), Swept(4e-3, math.inf), Swept(4e-3, math.nan)])
    assert beside_divergence == Best(2e-3, 1e-3, 4e-3, True)
    twice = best_rate([Swept(1e-3, 3.2), Swept(2e-3, 3.5), Swept(2e-3, 3.1), Swept(4e-3, 3.2)])
    assert twice.rate == pytest.approx(2e-3)


def best(rate: float) -> Best:
    return Best(rate, rate / 1.4, rate * 1.4, True)


def test_rates_carry_over() -> None:
    """With µP as they are; without, along the line that they lie on, and with less certainty."""
    same = carried([AtSize(1e6, best(4e-3)), AtSize(1e7, best(4e-3))], 1e9, transfers=True)
    assert same.rate == pytest.approx(4e-3) and same.high < 4e-3 * 1.4
    sizes = [AtSize(size, best(4e-3 * (size / 1e6) ** -0.5)) for size in (1e6, 1e7, 1e8, 1e9)]
    falling = carried(sizes, 1e10, transfers=False)
    assert falling.rate == pytest.approx(4e-5, rel=0.1)
    alone = carried(sizes[:1], 1e10, transfers=False)
    assert alone.low < 4e-5 < alone.high and alone.high / alone.low > 10 * falling.high / falling.low
