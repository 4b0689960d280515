"""The split of layers over pipeline stages against every split that there is."""

from __future__ import annotations

import itertools

import pytest

from danlu.model.counts import parameter_parts
from danlu.model.shape import ModelShape
from danlu.model.stages import split_layers


def shape_of(layers: int, vocabulary: int) -> ModelShape:
    return ModelShape(vocab_size=vocabulary, layers=layers, hidden_size=64, ffn_size=128, heads=4)


def dearest(shape: ModelShape, sizes: list[int]) -> float:
    """Matrix parameters of the stage that has most of them, the output embedding among the last one's."""
    parts = parameter_parts(shape)
    layer, head = (parts.attention + parts.mlp) / shape.layers, shape.vocab_size * shape.hidden_size
    return max(size * layer + head * (i == len(sizes) - 1) for i, size in enumerate(sizes))


@pytest.mark.parametrize("vocabulary", [10, 1000, 5000])
@pytest.mark.parametrize("layers", range(1, 9))
def test_no_other_split_is_cheaper(layers: int, vocabulary: int) -> None:
    shape = shape_of(layers, vocabulary)
    for stages in range(1, layers + 1):
        ranges = split_layers(shape, stages)
        assert [layer for each in ranges for layer in each] == list(range(layers))
        assert len(ranges) == stages and all(ranges)
        cuts = itertools.combinations(range(1, layers), stages - 1)
        others = ([b - a for a, b in itertools.pairwise([0, *cut, layers])] for cut in cuts)
        assert dearest(shape, [len(each) for each in ranges]) == min(dearest(shape, sizes) for sizes in others)


def test_a_large_vocabulary_takes_layers_off_the_last_stage() -> None:
    sizes = [len(each) for each in split_layers(shape_of(12, 2000), 3)]
    assert sizes[-1] < sizes[0] == sizes[1]


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match="4 stages of 3 layers"):
        split_layers(shape_of(3, 10), 4)
