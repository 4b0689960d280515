from __future__ import annotations

import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.data.batches import TrainingBatches, evaluation_batches
from danlu.data.stream import TokenStream

from .test_stream import write

DOCUMENTS = [list(range(1000 * number, 1000 * number + 3 + number * 5 % 17)) for number in range(1, 60)]
LENGTH = 8


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> TokenStream:
    return write(tmp_path_factory.mktemp("stream"), DOCUMENTS, 50)


def truth(documents: list[list[int]], start: int, length: int, mask: bool) -> dict[str, list[int]]:
    """A sample by plain counting over (document, token) pairs."""
    flat = [(number, token) for number, document in enumerate(documents) for token in document]
    window = flat[start : start + length + 1]
    sample: dict[str, list[int]] = {"inputs": [token for _, token in window[:-1]], "targets": [token for _, token in window[1:]]}
    if mask:
        sample["targets"] = [
            target if number == next_number else -100 for (number, _), (next_number, target) in itertools.pairwise(window)
        ]
        sample["documents"] = [number - window[0][0] for number, _ in window[:-1]]
        sample["positions"] = [
            sum(1 for other, _ in window[:at] if other == number) for at, (number, _) in enumerate(window[:-1])
        ]
    return sample


def batches(stream: TokenStream, **settings: Any) -> TrainingBatches:
    defaults = {"sequence_length": LENGTH, "global_batch": 4, "micro_batch": 2, "document_mask": True, "seed": 0}
    return TrainingBatches(stream, **(defaults | settings))


@pytest.mark.parametrize("mask", [False, True])
def test_an_epoch_has_every_sample_once_as_plain_counting_gives_it(stream: TokenStream, mask: bool) -> None:
    made = batches(stream, document_mask=mask, global_batch=1, micro_batch=1)
    assert made.steps_per_epoch == made.samples == (sum(map(len, DOCUMENTS)) - 1) // LENGTH
    found = [made[step] for step in range(made.samples)]
    expected = [truth(DOCUMENTS, LENGTH * i, LENGTH, mask) for i in range(made.samples)]
    names = {"inputs", "targets", "positions", "documents"} if mask else {"inputs", "targets"}
    assert [int(batch.pop("samples")[0, 0]) for batch in found] == list(range(made.samples))
    assert all(batch.keys() == names for batch in found)

    def key(sample: dict[str, Any]) -> str:
        return str([np.asarray(sample[name]).reshape(-1).tolist() for name in sorted(sample)])

    assert sorted(map(key, found)) == sorted(map(key, expected))
    assert list(map(key, found)) != list(map(key, expected)), "but not in the stream's order"


def test_shapes_and_types(stream: TokenStream) -> None:
    batch = batches(stream, global_batch=12, micro_batch=3)[5]
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "inputs": ((4, 3, LENGTH), "int64"),
        "targets": ((4, 3, LENGTH), "int64"),
        "positions": ((4, 3, LENGTH), "int64"),
        "documents": ((4, 3, LENGTH), "int32"),
        "samples": ((4, 3), "int64"),
    }
    assert all(array.flags.c_contiguous and array.flags.writeable for array in batch.values())


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_the_global_batch_does_not_depend_on_ranks_and_micro_batches(
    stream: TokenStream, world_size: int, micro_batch: int
) -> None:
    if 12 % (world_size * micro_batch):
        with pytest.raises(ValueError):
            batches(stream, global_batch=12, micro_batch=micro_batch, world_size=world_size)
        return
    for step in (0, 3, 1000):
        whole = batches(stream, global_batch=12, micro_batch=12)[step]
        ranks = [
            batches(stream, global_batch=12, micro_batch=micro_batch, rank=rank, world_size=world_size)[step]
            for rank in range(world_size)
        ]
        for name in ("inputs", "samples"):
            parts = [part[name].reshape(-1, *whole[name].shape[2:]) for part in ranks]
            assert np.array_equal(np.concatenate(parts), whole[name][0]), name
        assert whole["samples"][0].tolist() == list(range(12 * step, 12 * step + 12))


def test_steps_run_on_over_epochs_and_a_batch_larger_than_the_corpus_is_whole_epochs(stream: TokenStream) -> None:
    one = batches(stream, global_batch=1, micro_batch=1)
    samples = one.samples
    batch = batches(stream, global_batch=2 * samples, micro_batch=samples)[1]["inputs"]
    for epoch in range(2):
        firsts = batch[epoch, :, 0]
        assert len(set(firsts.tolist())) == samples
    assert not np.array_equal(batch[0], batch[1]), "epochs are shuffled differently"
    assert np.array_equal(batch[0, 3], one[2 * samples + 3]["inputs"][0, 0])


def test_a_step_is_a_function_of_seed_and_step(stream: TokenStream) -> None:
    made, other = batches(stream), batches(stream, seed=1)
    far = made[10**12]
    _ = made[3]
    again = pickle.loads(pickle.dumps(made))
    assert all(np.array_equal(far[name], again[10**12][name]) for name in far)
    assert not np.array_equal(far["inputs"], other[10**12]["inputs"])
    with pytest.raises(IndexError):
        made[-1]


def test_ranks_that_are_not_there(stream: TokenStream) -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank {rank} of world_size 2"):
            batches(stream, rank=rank, world_size=2)


def test_too_few_tokens(tmp_path: Path) -> None:
    assert batches(write(tmp_path / "9", [[1] * 9], 100)).samples == 1
    with pytest.raises(ValueError, match="8 tokens hold no sample of sequence_length 8"):
        batches(write(tmp_path / "8", [[1] * 8], 100))


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    length=st.integers(1, 10),
    batch=st.integers(1, 4),
    mask=st.booleans(),
)
@settings(max_examples=60)
def test_evaluation_has_every_target_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int, batch: int, mask: bool
) -> None:
    documents = [[100 * number + i for i in range(size)] for number, size in enumerate(lengths)]
    stream = write(tmp_path_factory.mktemp("s"), documents, 10)
    made = list(evaluation_batches(stream, sequence_length=length, batch=batch, document_mask=mask))
    total = sum(lengths)
    windows = math.ceil((total - 1) / length)
    assert len(made) == math.ceil(windows / batch)
    targets, rows = [], 0
    for found in made:
        assert all(array.shape == (batch, length) for array in found.values())
        for row in range(batch):
            expected = truth(documents, rows * length, length, mask)
            for name, values in expected.items():
                assert found[name][row, : len(values)].tolist() == values
            assert (found["targets"][row, len(expected["targets"]) :] == -100).all()
            targets += [int(token) for token in found["targets"][row] if token != -100]
            rows += 1
    flat = [token for document in documents for token in document]
    inside = [token for document in documents for token in document[1:]]
    assert targets == (inside if mask else flat[1:])


def test_evaluation_of_a_part_is_spread_over_the_stream(stream: TokenStream) -> None:
    def firsts(max_tokens: int) -> tuple[list[int], int]:
        made = list(evaluation_batches(stream, sequence_length=LENGTH, batch=3, document_mask=False, max_tokens=max_tokens))
        supervised = [row for batch in made for row in range(3) if (batch["targets"][row] != -100).any()]
        return [int(batch["inputs"][row, 0]) for batch in made for row in range(3) if batch["targets"][row, 0] != -100], sum(
            int((batch["targets"] != -100).sum()) for batch in made
        ) if supervised else 0

    starts, count = firsts(10 * LENGTH + 3)
    assert count == 10 * LENGTH
    assert starts == firsts(10 * LENGTH)[0], "the same windows every time"
    assert starts == sorted(starts)
    assert starts[-1] > 50_000, "the last documents too, not only the first"
    assert firsts(3)[1] == 3, "less than a window"
    everything = sum(map(len, DOCUMENTS)) - 1
    assert firsts(everything)[1] == firsts(10**9)[1] == everything
    assert firsts(everything - 1)[1] <= everything - 1


def test_evaluation_of_nothing(tmp_path: Path) -> None:
    for name, documents in (("a", []), ("b", [[1]])):
        stream = write(tmp_path / name, documents, 10)
        assert list(evaluation_batches(stream, sequence_length=4, batch=2, document_mask=True)) == []


def test_a_batch_reads_its_own_tokens_and_no_others(stream: TokenStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the stream, so that any step is reached at once."""
    read: list[tuple[int, int]] = []
    window, starts = stream.window, stream.document_starts

    def watched_window(start: int, length: int) -> Any:
        read.append((start, start + length))
        return window(start, length)

    def watched_starts(start: int, stop: int) -> Any:
        read.append((start, stop))
        return starts(start, stop)

    monkeypatch.setattr(stream, "window", watched_window)
    monkeypatch.setattr(stream, "document_starts", watched_starts)
    made = batches(stream, global_batch=4, micro_batch=2)
    for step in (0, 3, 10**6):
        read.clear()
        _ = made[step]
        assert len(read) == 2 * 4
        assert all(stop - start == LENGTH + 1 for start, stop in read)
