"""Statistics of batches beside counting by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from danlu.data.batch_statistics import RUN, batch_statistics


def batch(rows: list[list[int]], ignored: list[tuple[int, int]] = (), documents: Any = None) -> dict[str, Any]:  # type: ignore[assignment]
    inputs = np.array(rows, dtype=np.int64)[None]
    targets = inputs + 1
    for row, column in ignored:
        targets[0, row, column] = -100
    made = {"inputs": inputs, "targets": targets}
    return made if documents is None else made | {"documents": np.array(documents, dtype=np.int32)[None]}


def test_supervision_padding_and_lengths() -> None:
    rows = [[5, 6, 7, 8, 9, 4], [5, 6, 7, 0, 0, 0]]
    found = batch_statistics(batch(rows, [(0, 1), (1, 3), (1, 4), (1, 5)], [[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1]]))
    assert found.supervised == pytest.approx(8 / 12)
    assert found.padding == pytest.approx(3 / 12)
    assert found.duplicate == 0.0
    assert found.lengths is not None and sorted(found.lengths.tolist()) == [1, 1, 2, 2, 3]


def test_token_0_at_the_end_of_a_document_is_no_padding() -> None:
    found = batch_statistics(batch([[5, 6, 0]], [(0, 2)]))
    assert found.padding == 0.0 and found.lengths is None


@pytest.mark.parametrize("seed", range(3))
def test_duplicates_are_those_that_a_naive_count_finds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    text = draw.integers(1, 1000, 400)
    starts = draw.integers(0, 300, 8)
    rows = np.stack([text[start : start + 100] for start in starts])
    rows[3, 40] = 0  # a run of it is broken
    runs = Counter(tuple(row[at : at + RUN].tolist()) for row in rows for at in range(100 - RUN + 1))
    expected = 1 - len(runs) / sum(runs.values())
    assert 0 < expected < 1
    assert batch_statistics(batch(rows.tolist())).duplicate == pytest.approx(expected)
    assert batch_statistics(batch(rows[:, : RUN - 1].tolist())).duplicate == 0.0
