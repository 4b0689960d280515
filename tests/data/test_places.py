"""A set of documents in bits, against plain arrays."""

from __future__ import annotations

import numpy as np
import pytest

from danlu.data.curate.places import Places


@pytest.mark.parametrize("sizes", [[0], [64], [1, 63, 64], [100, 3, 0, 700], [65]])
def test_a_set_knows_what_is_in_it_and_how_many_come_before(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    parts = [random.random(size) < 0.4 for size in sizes]
    whole = np.concatenate(parts)
    places = Places.of(iter(parts))
    assert (places.has(np.arange(len(whole))) == whole).all()
    assert (places.before(np.arange(len(whole) + 1)) == np.concatenate([[0], whole.cumsum()])).all()
