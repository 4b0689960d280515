"""What holds for any series: no crash, no verdict from nothing, no dependence on the unit of the loss."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.doctor import show
from danlu.doctor.diagnose import FAILED, diagnose
from danlu.doctor.evidence import GRADIENT, LOSS, MEANINGS, VALIDATION, Evidence
from danlu.doctor.series import Series, runs, series, trailing_median

from .conftest import evidence
from .test_rules import CASES

NAMES = [name.replace("N", "1").replace("AME", "0") if "/N" in name else name for name in MEANINGS]
VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64), st.floats(0, 20), st.sampled_from([0.0, -1.0, 1e-300, 1e300])
)


@st.composite
def signals(draw: st.DrawFn) -> dict[str, Series]:
    result = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6)):
        values = draw(st.lists(VALUES, min_size=1, max_size=20)) * draw(st.integers(1, 20))
        first, stride = draw(st.integers(0, 10**6)), draw(st.integers(1, 1000))
        result[name] = series(first + stride * np.arange(len(values)), values)
    return result


@settings(max_examples=150, deadline=None)
@given(signals(), st.lists(st.integers(0, 10**6), max_size=2), st.booleans())
def test_any_series_is_judged_without_a_crash(found: dict[str, Series], resumes: list[int], own: bool) -> None:
    diagnosis = diagnose(Evidence(found, {"train.steps": 100, "train.optimizer.learning_rate": 1.0}, resumes, own))
    assert not [reason for reason in diagnosis.unjudged.values() if FAILED in reason]
    for language in ("en", "zh"):
        assert "\n".join(show.lines(diagnosis, language, True))
    json.dumps(show.as_json(diagnosis, "x"))


def test_nothing_is_found_in_nothing() -> None:
    diagnosis = diagnose(Evidence({}))
    assert not diagnosis.findings and not diagnosis.silent


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1].__name__}" for case in CASES])
@pytest.mark.parametrize("factor", [1e-4, 37.0])
def test_the_unit_of_the_loss_does_not_matter(case: tuple, factor: float) -> None:
    _, fault, _, extra = case
    one = evidence(fault, **extra)
    scaled = {name: Series(it.steps, it.values * factor) if name.endswith("loss") else it for name, it in one.signals.items()}
    other = Evidence(scaled, one.facts, one.resumes, one.own, one.memory_limits)
    assert [finding.rule for finding in diagnose(other).findings] == [finding.rule for finding in diagnose(one).findings]


@pytest.mark.parametrize("missing", [LOSS, VALIDATION, GRADIENT])
def test_a_signal_that_is_missing_makes_no_finding(missing: str) -> None:
    diagnosis = diagnose(evidence(without=(missing,)))
    assert not diagnosis.findings
    assert any(missing in reason for reason in diagnosis.unjudged.values())


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 9))
def test_trailing_median_is_that_of_the_points_before(values: list[float], width: int) -> None:
    found = trailing_median(np.array(values), width)
    for at in range(len(values)):
        before = values[max(0, at - width) : at]
        assert math.isnan(found[at]) if not before else found[at] == np.median(before)


def test_a_very_long_series_costs_no_more_medians() -> None:
    values = np.arange(100_000.0)
    found = trailing_median(values, 101)
    assert len(found) == len(values)
    assert np.abs(found[101:] - (values[101:] - 51)).max() <= 6


@given(st.lists(st.booleans(), max_size=30))
def test_runs_cover_what_is_true(mask: list[bool]) -> None:
    marked = np.zeros(len(mask), dtype=bool)
    for start, stop in runs(np.array(mask, dtype=bool)):
        assert start < stop and not marked[start:stop].any()
        marked[start:stop] = True
    assert marked.tolist() == mask


def test_of_equal_steps_the_last_counts_and_steps_are_sorted() -> None:
    one = series([3, 1, 3, 2], [30.0, 10.0, 31.0, 20.0])
    assert one.steps.tolist() == [1, 2, 3] and one.values.tolist() == [10.0, 20.0, 31.0]
    assert one.between(2, 3).values.tolist() == [20.0, 31.0]


def test_noise_is_that_of_the_points_about_a_trend() -> None:
    noise = np.random.default_rng(3)
    values = np.linspace(10, 2, 4000) + 0.25 * noise.standard_normal(4000)
    values[::100] += 50
    assert 0.23 < series(np.arange(4000), values).noise < 0.28


def test_a_run_of_a_million_steps_is_judged_in_bounded_memory() -> None:
    steps = np.arange(1_000_000)
    loss = 2 + 8 * (steps + 10.0) ** -0.2 + 0.02 * np.random.default_rng(0).standard_normal(len(steps))
    loss[600_000:] += np.minimum(steps[600_000:] - 600_000, 150_000) / 75_000
    noise = np.random.default_rng(1).standard_normal(len(steps))
    tracemalloc.start()
    diagnosis = diagnose(Evidence({LOSS: series(steps, loss), GRADIENT: series(steps, np.exp(0.1 * noise))}, {}, [], True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e9
    (found,) = [one for one in diagnosis.findings if one.rule == "divergence"]
    assert found.step is not None and 560_000 < found.step <= 620_000
    assert not [why for why in diagnosis.unjudged.values() if FAILED in why]
