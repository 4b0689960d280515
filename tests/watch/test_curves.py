"""Thinned curves: what must survive, and what must be said about the rest."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.watch.curves import POINTS, curve, curves, thinned
from danlu.watch.store import Recorder

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300)


def test_a_short_curve_is_kept_whole() -> None:
    values = np.linspace(3.0, 1.0, POINTS)
    result = curve(np.arange(POINTS) * 5, values)
    assert result["steps"] == list(range(0, POINTS * 5, 5))
    assert result["values"] == pytest.approx(values, rel=1e-6)
    assert result["points"] == POINTS and result["not_finite"] == 0 and "means" not in result


def test_a_long_curve_keeps_its_extremes_its_ends_and_its_gaps() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=1_000_000)
    values[[123_456, 777_777]] = 50.0, -50.0
    values[500_000] = math.nan
    values[600_000:600_010] = math.inf
    steps = np.arange(1_000_000) * 2
    result = curve(steps, values)
    assert result["points"] == 1_000_000 and result["not_finite"] == 11
    assert POINTS * 0.95 < len(result["steps"]) <= POINTS + 2
    shown = dict(zip(result["steps"], result["values"], strict=True))
    assert shown[2 * 123_456] == 50.0 and shown[2 * 777_777] == -50.0
    assert shown[0] == pytest.approx(values[0], rel=1e-6) and shown[1_999_998] == pytest.approx(values[-1], rel=1e-6)
    assert shown[1_000_000] is None and shown[1_200_000] is None
    assert result["steps"] == sorted(set(result["steps"]))


def test_the_means_of_a_long_curve_are_those_of_its_buckets() -> None:
    values = np.repeat(np.arange(POINTS // 2, dtype=np.float64), 10)
    values[15] = math.nan
    values[20:30] = math.inf
    result = curve(np.arange(len(values)), values)
    expected = [float(bucket) for bucket in range(POINTS // 2)]
    assert result["means"][:2] == expected[:2] and result["means"][3:] == expected[3:]
    assert result["means"][2] is None
    assert result["mean_steps"][:3] == [4, 14, 24]


@given(VALUES, st.integers(4, 40))
@settings(max_examples=150, deadline=None)
def test_thinning_any_values(values: list[float], points: int) -> None:
    array = np.array(values)
    kept = thinned(array, points)
    finite = array[np.isfinite(array)]
    assert kept.tolist() == sorted(set(kept.tolist())) and {0, len(values) - 1} <= set(kept.tolist())
    if len(finite):
        shown = array[kept][np.isfinite(array[kept])]
        assert shown.min() == finite.min() and shown.max() == finite.max()
    assert np.isfinite(array[kept]).sum() <= max(points, 4)
    assert np.isfinite(array).all() == np.isfinite(array[kept]).all()


@pytest.mark.parametrize(("value", "last"), [(1.5, 1.5), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_last_value_that_is_not_finite_is_named(value: float, last: float | str) -> None:
    result = curve(np.array([7]), np.array([value]))
    assert result["last"] == last
    json.dumps(result, allow_nan=False)


def test_all_signals_of_a_file(tmp_path: Path) -> None:
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0, "my/own": 2.0})
        recorder.scalars(1, {"train/loss": 0.123456789})
    found = curves(tmp_path / "metrics.sqlite")
    assert set(found) == {"train/loss", "my/own"}
    assert found["train/loss"]["values"] == [1.0, 0.1234568]
