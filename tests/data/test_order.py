from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.data.order import permute, sample_indices


@pytest.mark.parametrize("samples", [*range(1, 70), 1000, 1023, 1024, 1025, 99_991, 100_000])
def test_every_sample_once(samples: int) -> None:
    for seed, epoch in [(0, 0), (7, 3)]:
        assert np.array_equal(np.sort(permute(np.arange(samples), samples, seed, epoch)), np.arange(samples))


@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
@settings(max_examples=60)
def test_every_sample_once_for_any_seed(samples: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(samples), samples, seed, epoch)), np.arange(samples))


@given(st.integers(1, 300), st.integers(0, 1000), st.lists(st.integers(0, 500), min_size=1, max_size=20))
@settings(max_examples=60)
def test_any_part_of_the_order_is_the_same_as_in_the_whole(samples: int, seed: int, positions: list[int]) -> None:
    whole = sample_indices(np.arange(501), samples, seed)
    assert np.array_equal(sample_indices(np.array(positions), samples, seed), whole[positions])
    for epoch in range(501 // samples):
        assert len(set(whole[epoch * samples : (epoch + 1) * samples].tolist())) == samples


def test_large_numbers_of_samples() -> None:
    samples = 10**9 + 7
    rng = np.random.default_rng(0)
    positions = np.unique(rng.integers(0, samples, 1_000_000))
    found = permute(positions, samples, 1, 2)
    assert found.min() >= 0
    assert found.max() < samples
    assert len(np.unique(found)) == len(positions)
    assert abs(found.mean() / samples - 0.5) < 0.002
    assert abs(np.corrcoef(positions, found)[0, 1]) < 0.005
    huge = 2**62 + 1
    found = permute(np.arange(huge - 1000, huge), huge, 0, 0)
    assert found.min() >= 0
    assert found.max() < huge
    assert len(np.unique(found)) == 1000


@pytest.mark.parametrize("samples", [2, 3, 4, 5, 7, 12])
def test_a_value_is_as_likely_at_every_position(samples: int) -> None:
    epochs = 3000
    counts = np.zeros((samples, samples))
    for epoch in range(epochs):
        counts[np.arange(samples), permute(np.arange(samples), samples, 11, epoch)] += 1
    expected = epochs / samples
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (samples - 1) ** 2
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_all_orders_of_four_are_about_as_likely() -> None:
    counts = Counter(tuple(permute(np.arange(4), 4, 5, epoch).tolist()) for epoch in range(4800))
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7, "p = 0.001 for 23 degrees of freedom"


def test_neighbours_are_not_related() -> None:
    samples = 50_000
    order = permute(np.arange(samples), samples, 3, 0)
    for distance in (1, 2, 3, 223, 224, 225):
        assert abs(np.corrcoef(order[:-distance], order[distance:])[0, 1]) < 4 / samples**0.5
    steps = np.diff(order) % samples
    tenths = np.bincount(steps * 10 // samples, minlength=10)
    assert ((tenths - tenths.mean()) ** 2 / tenths.mean()).sum() < 27.9
    assert len(np.unique(steps)) > 0.6 * samples, "random steps repeat as often as random numbers do (1 - 1/e)"


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permute(np.arange(100), 100, seed, epoch).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    first, second = (permute(np.arange(50_000), 50_000, 0, epoch) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_the_order_is_frozen() -> None:
    """A run that is resumed by a later version must go on in the same order."""
    assert permute(np.arange(10), 10, 0, 0).tolist() == [6, 1, 4, 0, 7, 9, 5, 8, 2, 3]
    assert permute(np.arange(3), 10**9, 42, 1).tolist() == [777377866, 549349011, 735763423]
