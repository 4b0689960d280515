"""Four gloo processes: the self-test of groups, checks of replicas, and the roll call before a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("together.py")


@pytest.fixture(scope="module")
def said() -> dict[str, list[Any]]:
    """What each rank said, by scene."""
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True)
    ranks = json.loads(ended.stdout)
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        ("data and tensor", ["data", "tensor", "world"]),
        ("zero 3", ["data", "world"]),
        ("data and pipeline, tied", ["data", "pipeline", "tied embeddings", "world"]),
        ("sequence parallel and pipeline", ["pipeline", "tensor", "world"]),
    ],
)
def test_every_group_is_tried_and_replicas_are_equal(said: dict[str, list[Any]], layout: str, groups: list[str]) -> None:
    assert said[layout] == [groups] * 4


@pytest.mark.parametrize(
    ("scene", "found"),
    [
        ("a bit of a replica", ["model.layers.2.mlp.up_proj.weight on ranks 0, 1, 2, 3 (rank 1 against the rest)"]),
        ("a bit of a shard's replica", ["model.layers.0.self_attn.q_proj.weight on ranks 1, 3"]),
        ("a bit of a norm under tensor parallelism", ["model.norm.weight on ranks 0, 1, 2, 3 (rank 2 against the rest)"]),
        (
            "a bit of a norm under sequence parallelism",
            ["model.layers.1.input_layernorm.weight on ranks 0, 1, 2, 3 (rank 0 against the rest)"],
        ),
        ("a bit of the tied embeddings", ["lm_head.weight on ranks 1, 3", "model.embed_tokens.weight on ranks 1, 3"]),
        ("a bit that is nobody else's", []),
    ],
)
def test_one_flipped_bit(said: dict[str, list[Any]], scene: str, found: list[str]) -> None:
    """The lowest bit of one number on one rank: every rank hears of it; a shard that nobody replicates cannot be compared."""
    assert said[scene] == [found] * 4


def test_a_wrong_result(said: dict[str, list[Any]]) -> None:
    """Of one rank in one group; the ranks of the other group are not held up."""
    first, second, third, fourth = said["a wrong sum"]
    assert first == second == "all is well"
    assert fourth == "self-test of group tensor (ranks 2, 3), all-reduce on rank 3: wrong result at 7: 22, not 21"
    assert third.startswith("self-test of group tensor (ranks 2, 3), all-gather on rank 2: ")


def test_no_answer(said: dict[str, list[Any]]) -> None:
    text = "self-test of group world (ranks 0, 1, 2, 3), all-reduce on rank {}: no answer within 1 seconds; not come: rank 2"
    assert [said["a rank stays away"][rank] for rank in (0, 1, 3)] == [text.format(rank) for rank in (0, 1, 3)]


def test_all_hold_the_same(said: dict[str, list[Any]]) -> None:
    assert said["all alike"] == ["all hold the same"] * 4


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        ("another recipe", "rank 2: recipe.train.seed is 2, but 1 on the others"),
        ("another code", "rank 2: danlu is 1, code xyz, but 1, code abc on the others"),
        ("another torch", "rank 2: torch is 1, but 2 on the others"),
        ("other data", "rank 2: data is f00d, but feed on the others"),
        ("another folder", "is another folder there than on the first rank; put the runs on a file system that all machines"),
        ("one is missing", "rank 2 did not come within 1 seconds"),
    ],
)
def test_a_rank_that_differs_is_named_to_all(said: dict[str, list[Any]], scene: str, message: str) -> None:
    heard = [text for rank, text in enumerate(said[scene]) if rank != 2 or scene != "one is missing"]
    assert all(message in text for text in heard)
    assert len(set(heard)) == 1
