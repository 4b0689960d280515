"""Thinned curves: what must survive, and what must be said about the rest."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.watch.curves import POINTS, curve

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300)


def test_a_short_curve_is_kept_whole() -> None:
    values = np.linspace(3.0, 1.0, POINTS)
    result = curve(np.arange(POINTS) * 5, values)
    assert result["x"] == list(range(0, POINTS * 5, 5))
    assert result["y"] == pytest.approx(values, rel=1e-6)
    assert result["points"] == POINTS and result["not_finite"] == 0 and "mean" not in result


def test_a_long_curve_keeps_its_extremes_its_ends_and_its_gaps() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=1_000_000)
    values[[123_456, 777_777]] = 50.0, -50.0
    values[500_000] = math.nan
    values[600_000:600_010] = math.inf
    steps = np.arange(1_000_000) * 2
    result = curve(steps, values)
    assert result["points"] == 1_000_000 and result["not_finite"] == 11
    assert POINTS * 0.95 < len(result["x"]) <= POINTS + 2
    assert result["shown"] == len(result["x"]) and result["inside"] == 1_000_000
    shown = dict(zip(result["x"], result["y"], strict=True))
    assert shown[2 * 123_456] == 50.0 and shown[2 * 777_777] == -50.0
    assert shown[0] == pytest.approx(values[0], rel=1e-6) and shown[1_999_998] == pytest.approx(values[-1], rel=1e-6)
    assert shown[1_000_000] is None and shown[1_200_000] is None
    assert result["x"] == sorted(set(result["x"]))


def test_the_means_of_a_long_curve_are_those_of_its_buckets() -> None:
    values = np.repeat(np.arange(POINTS // 2 - 1, dtype=np.float64), 10)
    values[15] = math.nan
    values[20:30] = math.inf
    result = curve(np.arange(len(values)), values)
    expected = [float(bucket) for bucket in range(POINTS // 2 - 1)]
    assert result["mean"][:2] == expected[:2] and result["mean"][3:] == expected[3:]
    assert result["mean"][2] is None
    assert result["mean_x"][:3] == [4, 14, 24]


@given(VALUES, st.integers(4, 40), st.sampled_from([1.0, 2.5]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_thinning_any_values(values: list[float], points: int, power: float, logarithmic: bool) -> None:
    array = np.array(values)
    x = np.arange(len(values), dtype=np.float64) ** power
    result = curve(x, array, points=points, logarithmic=logarithmic)
    finite = array[np.isfinite(array)].astype(np.float64)
    assert result["x"] == sorted(set(result["x"])) and {result["x"][0], result["x"][-1]} == {x[0], float(f"{x[-1]:.7g}")}
    shown = [value for value in result["y"] if value is not None]
    if len(finite):
        assert min(shown) == float(f"{finite.min():.7g}") and max(shown) == float(f"{finite.max():.7g}")
    assert len(shown) <= max(points, 4)
    assert np.isfinite(array).all() == (None not in result["y"])


@given(VALUES, st.integers(-5, 305), st.integers(0, 305))
@settings(max_examples=100, deadline=None)
def test_a_part_of_the_axis_comes_with_one_point_on_either_side(values: list[float], low: int, width: int) -> None:
    array, high = np.array(values), low + width
    result = curve(np.arange(len(values)), array, within=(low, high), points=10_000)
    inside = [at for at in range(len(values)) if low <= at <= high]
    expected = [at for at in range(len(values)) if inside and min(inside) - 1 <= at <= max(inside) + 1]
    if inside:
        assert result["x"] == expected
    assert result["inside"] == result["shown"] == len(inside) and result["points"] == len(values)
    assert result["not_finite"] == sum(not math.isfinite(values[at]) for at in inside)


def test_on_a_logarithmic_axis_every_decade_has_as_many_columns() -> None:
    x = np.arange(1, 1_000_001)
    result = curve(x, np.random.default_rng(0).normal(size=len(x)), points=600, logarithmic=True)
    per_decade = np.histogram(np.log10(result["x"]), bins=[3, 4, 5, 6])[0]
    assert per_decade.min() > 0.9 * per_decade.max() > 80


@pytest.mark.parametrize(("value", "last"), [(1.5, 1.5), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_last_value_that_is_not_finite_is_named(value: float, last: float | str) -> None:
    result = curve(np.array([7]), np.array([value]))
    assert result["last"] == last
    json.dumps(result, allow_nan=False)
