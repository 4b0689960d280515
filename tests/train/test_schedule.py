from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from danlu.train.schedule import learning_rate


def rates(**changed: Any) -> list[float]:
    settings: dict[str, Any] = {"name": "cosine", "peak": 3e-4, "steps": 100, "warmup_steps": 10, "final_ratio": 0.1} | changed
    return [learning_rate(step, **settings) for step in range(settings["steps"])]


def test_the_warm_up_is_a_line_through_the_origin_that_ends_at_the_peak() -> None:
    assert rates()[:10] == pytest.approx([3e-5, 6e-5, 9e-5, 12e-5, 15e-5, 18e-5, 21e-5, 24e-5, 27e-5, 3e-4], rel=1e-12)
    assert rates()[9] == 3e-4
    assert rates().index(max(rates())) == 9


@pytest.mark.parametrize("final_ratio", [0.0, 0.1, 0.37, 1.0])
@pytest.mark.parametrize("warmup_steps", [0, 1, 10, 98])
@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_last_step_has_exactly_the_final_ratio(name: str, warmup_steps: int, final_ratio: float) -> None:
    found = rates(name=name, warmup_steps=warmup_steps, final_ratio=final_ratio)
    assert found[-1] == 3e-4 * final_ratio
    assert found[max(warmup_steps - 1, 0)] == 3e-4
    falling = found[max(warmup_steps - 1, 0) :]
    assert falling == sorted(falling, reverse=True)
    assert min(found) >= 0


def test_cosine_by_its_values_at_the_quarters() -> None:
    """1 - sin^2 and the known cosines, not the formula of the code."""
    found = rates(warmup_steps=1, steps=101, final_ratio=0.0, peak=1.0)
    assert found[25] == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-12)
    assert found[50] == pytest.approx(0.5, abs=1e-12)
    assert found[75] == pytest.approx((1 - math.sqrt(0.5)) / 2, abs=1e-12)
    assert rates(warmup_steps=1, steps=101, final_ratio=0.2, peak=1.0)[50] == pytest.approx(0.6, abs=1e-12)


def test_linear_falls_by_the_same_amount_every_step() -> None:
    found = rates(name="linear", steps=50, warmup_steps=5)
    falls = [before - after for before, after in pairwise(found[4:])]
    assert len(falls) == 45
    assert falls == pytest.approx([3e-4 * 0.9 / 45] * 45, rel=1e-9)


def test_constant_stays_at_the_peak() -> None:
    assert rates(name="constant", warmup_steps=2, steps=5) == [1.5e-4, 3e-4, 3e-4, 3e-4, 3e-4]


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_a_warm_up_over_all_steps_ends_at_the_peak(name: str) -> None:
    assert rates(name=name, steps=4, warmup_steps=4, peak=1.0) == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("warmup_steps", [0, 1])
@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_a_single_step_has_the_peak(name: str, warmup_steps: int) -> None:
    assert rates(name=name, steps=1, warmup_steps=warmup_steps) == [3e-4]


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_two_steps_are_the_peak_and_the_end(warmup_steps: int) -> None:
    assert rates(steps=2, warmup_steps=warmup_steps, peak=1.0, final_ratio=0.25) == [1.0, 0.25]


def test_cosine_lies_above_linear_before_the_middle_and_below_it_after() -> None:
    cosine, linear = rates(warmup_steps=0, steps=101), rates(name="linear", warmup_steps=0, steps=101)
    assert all(c > li for c, li in zip(cosine[1:50], linear[1:50], strict=True))
    assert all(c < li for c, li in zip(cosine[51:100], linear[51:100], strict=True))
