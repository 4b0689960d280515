"""Histograms beside numpy's, on the edges that they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays

from danlu.watch.histogram import BINS, edges, histogram, quantile


def test_edges_are_powers_of_the_square_root_of_two_and_mirrored() -> None:
    found = edges(3)
    assert len(found) == BINS + 1 and found[32] == 0
    assert np.allclose(found[33:], np.sqrt(2.0) ** np.arange(3 - 31, 4))
    assert np.array_equal(found, -found[::-1])
    assert np.array_equal(edges(3)[34:], edges(4)[33:-1])  # one grid


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float32, some.integers(1, 200), elements=some.floats(-(2.0**60), 2.0**60, width=32)))
def test_counts_are_numpys(values: np.ndarray) -> None:
    """The negative side is the mirror image, so that an entry on an edge goes outwards there too."""
    found = histogram(values)
    assert found.counts.sum() == values.size and found.not_finite == 0
    positive, negative = values[values >= 0].astype(np.float64), -values[values < 0].astype(np.float64)
    limits = np.concatenate((found.edges[32:-1], [np.nextafter(found.edges[-1], np.inf)]))
    assert np.histogram(positive, limits)[0].tolist() == found.counts[32:].tolist()
    assert np.histogram(negative, limits)[0].tolist() == found.counts[:32][::-1].tolist()
    if len(largest := np.abs(values[np.abs(values) > 2.0**-47])):
        assert 2.0 ** ((found.exponent - 1) / 2) <= largest.max() < 2.0 ** (found.exponent / 2)


def test_what_is_not_finite_is_counted_apart() -> None:
    found = histogram([np.nan, np.inf, -np.inf, 1e30, 1.0, 0.0])
    assert found.not_finite == 4 and found.counts.sum() == 2
    assert histogram([]).counts.sum() == 0
    assert histogram([0.0, 0.0]).counts[32] == 2


def test_quantiles_are_those_of_the_entries_within_a_bin() -> None:
    values = np.random.default_rng(1).lognormal(size=20_000)
    for share in (0.1, 0.5, 0.9):
        assert quantile(histogram(values), share) == pytest.approx(np.quantile(values, share), rel=0.1)
    assert np.isnan(quantile(histogram([]), 0.5))
