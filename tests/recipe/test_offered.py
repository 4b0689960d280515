"""What an engine has no part for is refused in one line, with a way out."""

from __future__ import annotations

import pytest

from danlu.errors import UserError
from danlu.recipe import offered, parse

TREE = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x.txt"}]}, "train": {"global_batch": 8}}
AUTO = "parallel.api=auto_parallel"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["train.engine=torch", AUTO],
            "parallel.api: auto_parallel is a way of paddle; leave it out, or use train.engine=paddle",
        ),
        (
            ["parallel.pipeline=2", "memory.micro_batch=2", AUTO],
            "parallel.pipeline: 2 is not part of parallel.api auto_parallel yet; use parallel.api=fleet, or leave it out",
        ),
        (["parallel.data=2", "parallel.zero_stage=3", AUTO], "parallel.zero_stage: 3 is not part of parallel.api auto_parallel"),
        (
            ["parallel.tensor=2", "parallel.sequence_parallel=true", AUTO],
            "parallel.sequence_parallel: true is not part of parallel",
        ),
        (["parallel.data=2", "train.compile=true", AUTO], "train.compile: true in several processes is not part of parallel.api"),
    ],
)
def test_auto_parallel_is_paddle_s_and_has_data_and_tensor_ranks(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as raised:
        offered.check(parse(TREE, ["train.engine=paddle", *overrides]))
    assert str(raised.value).startswith(words) and "\n" not in str(raised.value)


def test_paddle_compiles_whole_layers() -> None:
    compiled = ["train.engine=paddle", "train.compile=true"]
    offered.check(parse(TREE, [*compiled, "parallel={data: 2, zero_stage: 2}"]))
    offered.check(parse(TREE, [*compiled, "parallel.pipeline=2", "memory.micro_batch=2"]))
    for layout, words in (
        ("parallel.tensor=2", "train.compile: true with parallel.tensor is not part of the paddle engine yet; use"),
        ("parallel={data: 2, zero_stage: 3}", "train.compile: true with zero_stage 3 is not part of the paddle engine yet; use"),
    ):
        with pytest.raises(UserError) as raised:
            offered.check(parse(TREE, [*compiled, layout]))
        assert str(raised.value).startswith(words)


def test_what_it_has_is_not_refused() -> None:
    layout = ["parallel.data=2", "parallel.tensor=2", "parallel.zero_stage=2", "memory.recompute=full"]
    offered.check(parse(TREE, ["train.engine=paddle", *layout, AUTO]))


def test_o2_is_a_level_of_paddle_s_ordinary_parameters() -> None:
    o2 = ["train.precision=bf16", "train.amp_level=O2"]
    offered.check(parse(TREE, ["train.engine=paddle", *o2]))
    for overrides, words in (
        (["train.engine=torch"], "train.amp_level: O2 is a level of paddle; leave it out, or use train.engine=paddle"),
        (["train.engine=paddle", "parallel.data=2", AUTO], "train.amp_level: O2 is not part of parallel.api auto_parallel"),
        (
            ["train.engine=paddle", "parallel={data: 2, zero_stage: 3}"],
            "train.amp_level: O2 with zero_stage 3 is not part of",
        ),
    ):
        with pytest.raises(UserError) as raised:
            offered.check(parse(TREE, [*overrides, *o2]))
        assert str(raised.value).startswith(words)
