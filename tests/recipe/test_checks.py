"""Contradictions between fields: each is refused, and what its message proposes works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from danlu.recipe import parse

Refusal = Callable[..., str]
Tree = dict[str, Any]


def accepted(tree: Tree, *overrides: str) -> bool:
    parse(tree, overrides)
    return True


def test_the_global_batch_must_divide_by_the_micro_batch(refusal: Refusal, tree: Tree) -> None:
    message = refusal("train.global_batch=30", "memory.micro_batch=8")
    assert "train.global_batch: 30 is not divisible by memory.micro_batch (8)" in message
    assert "give train.global_batch 24 or 32, or memory.micro_batch 6 or 10" in message
    assert accepted(tree, "train.global_batch=24", "memory.micro_batch=8")
    assert accepted(tree, "train.global_batch=32", "memory.micro_batch=8")
    assert accepted(tree, "train.global_batch=30", "memory.micro_batch=6")
    assert accepted(tree, "train.global_batch=30", "memory.micro_batch=10")


def test_a_micro_batch_above_the_global_batch(refusal: Refusal) -> None:
    message = refusal("train.global_batch=4", "memory.micro_batch=6")
    assert "give train.global_batch 6, or memory.micro_batch 4" in message


def test_huge_batches_are_refused_at_once(refusal: Refusal) -> None:
    message = refusal("train.global_batch=1000000000000000003", "memory.micro_batch=500000000000000000")
    assert "or memory.micro_batch 1 or 1000000000000000003" in message


def test_several_replicas_are_for_a_later_version(refusal: Refusal) -> None:
    assert "parallel.data: 2 replicas need several processes, and this version trains in one; write 1" in refusal(
        "parallel.data=2"
    )
    message = refusal("parallel.data=5")
    assert message.endswith("(and 1 more to mend: train.global_batch)")


def test_the_sequence_must_fit_the_model(refusal: Refusal, tree: Tree) -> None:
    message = refusal("data.sequence_length=4096")
    assert "data.sequence_length: 4096 is above model.max_sequence_length (2048)" in message
    assert accepted(tree, "data.sequence_length=2048")
    assert accepted(tree, "data.sequence_length=4096", "model.max_sequence_length=4096")


def test_the_warm_up_must_end_before_the_steps_do(refusal: Refusal, tree: Tree) -> None:
    message = refusal("train.steps=200", "train.schedule.warmup_steps=201")
    assert "train.schedule.warmup_steps: 201 is more than train.steps (200)" in message
    assert "(10 to 20)" in message
    assert accepted(tree, "train.steps=200", "train.schedule.warmup_steps=200")
    assert "give at most 5" in refusal("train.steps=5", "train.schedule.warmup_steps=6")


def test_two_ways_of_the_same_thing_are_refused(refusal: Refusal) -> None:
    assert "train.schedule: warmup_steps and warmup_fraction are both given; keep one" in refusal(
        "train.schedule={warmup_steps: 1, warmup_fraction: 0.1}"
    )
    assert "data.tokenizer: train and path are both given; keep one" in refusal("data.tokenizer={path: a, train: {}}")
    assert "model.preset: given beside model.hugging_face" in refusal("model.hugging_face=some/folder")


@pytest.mark.parametrize(
    "override", ["data.tokenizer.begin=<s>", "data.tokenizer.end=</s>", "data.tokenizer={train: {}, end: a}"]
)
def test_marks_of_a_loaded_tokenizer_need_one(refusal: Refusal, override: str) -> None:
    assert "data.tokenizer: begin and end belong to a loaded tokenizer" in refusal(override)


def test_evaluation_needs_held_out_text(refusal: Refusal, tree: Tree) -> None:
    message = refusal("data.validation_fraction=0")
    assert "data.validation_fraction: 0 holds nothing out, but the stage evaluate (a default) measures" in message
    message = refusal("data.validation_fraction=0", "stages=[prepare, train, evaluate]", "train.evaluate_every=5")
    assert "but train.evaluate_every (5) and the stage evaluate measures" in message
    assert "train.evaluate_every (5)" in refusal("data.validation_fraction=0", "stages=[train]", "train.evaluate_every=5")
    assert accepted(tree, "data.validation_fraction=0", "stages=[prepare, train, generate]")


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("[train, prepare]", "train stands before prepare, which it needs; write [prepare, train]"),
        ("[evaluate, train]", "evaluate stands before train, which it needs; write [train, evaluate]"),
        ("[prepare, export, train]", "write [prepare, train, export]"),
        ("[generate, prepare]", "write [prepare, generate]"),
        ("[train, train]", "train is named twice; name each stage once"),
        ("[]", "must be a list of at least 1"),
    ],
)
def test_stages_out_of_order_or_twice(refusal: Refusal, stages: str, expected: str) -> None:
    message = refusal(f"stages={stages}")
    assert "stages: " in message
    assert expected in message


@pytest.mark.parametrize(
    "stages", ["[prepare, train, generate, evaluate, export]", "[evaluate]", "[prepare]", "[export, generate]"]
)
def test_stages_that_make_sense(tree: Tree, stages: str) -> None:
    assert accepted(tree, f"stages={stages}")


def test_the_embedding_must_hold_the_tokenizer_that_will_be_trained(refusal: Refusal, tree: Tree) -> None:
    message = refusal("model.vocab_size=8000")
    assert "model.vocab_size: 8000 is smaller than data.tokenizer.train.vocab_size (8192); give at least 8192" in message
    assert accepted(tree, "model.vocab_size=8192")
    assert accepted(tree, "model.vocab_size=600", "data.tokenizer.train.vocab_size=600")
    assert accepted(tree, "model.vocab_size=600", "data.tokenizer.path=a.json")


def test_dimensions_that_are_missing_are_listed(refusal: Refusal, tree: Tree) -> None:
    message = refusal(model={})
    assert "missing here: model.layers, model.hidden_size, model.ffn_size and model.heads" in message
    message = refusal(model={"layers": 2, "heads": 2, "kv_heads": 1})
    assert "model: give preset or hugging_face, or every dimension; missing here: model.hidden_size and model.ffn_size" in message
    spelled_out = {"layers": 2, "heads": 2, "hidden_size": 64, "ffn_size": 128}
    assert accepted({**tree, "model": spelled_out})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"preset": "llama-5"}, "model.preset: there is no preset 'llama-5'; did you mean llama-5m"),
        ({"preset": "zzzz"}, "model.preset: there is no preset 'zzzz'"),
        ({"preset": "llama-5m", "kv_heads": 3}, "model.kv_heads: 3 does not divide heads (4); give 2 or 4"),
        (
            {"preset": "llama-5m", "heads": 6},
            "model.hidden_size: 256 is not a multiple of heads (6); give hidden_size 252 or 258",
        ),
        (
            {"preset": "llama-5m", "head_size": 33},
            "model.head_size: 33 is odd, but rotary positions turn pairs; give head_size 32 or 34",
        ),
        ({"layers": 1, "heads": 4, "hidden_size": 12, "ffn_size": 8}, "model.head_size: 3 (hidden_size 12 / heads 4) is odd"),
        ({"preset": "llama-5m", "qk_norm": True}, "model.qk_norm: must be false for family llama"),
        ({"preset": "llama-5m", "sliding_window": 8}, "model.sliding_window: must be null for family llama"),
        (
            {"preset": "qwen2.5-0.5b", "full_attention_layers": 3},
            "model.full_attention_layers: 3 does nothing without model.sliding_window",
        ),
        (
            {"preset": "qwen2.5-0.5b", "sliding_window": 40_000},
            "model.sliding_window: 40000 is above model.max_sequence_length (32768), so it would do nothing",
        ),
        (
            {"preset": "qwen2.5-0.5b", "sliding_window": 512, "full_attention_layers": 24},
            "model.full_attention_layers: 24 of 24 layers leave none for model.sliding_window; give at most 23",
        ),
        (
            {"preset": "llama-5m", "rope_scaling": {"kind": "llama3", "factor": 8}},
            "model.rope_scaling.original_max_sequence_length: ",
        ),
        ({"preset": "llama-5m", "rope_scaling": {"kind": "yarn", "factor": 8}}, "original_max_sequence_length: "),
        (
            {
                "preset": "llama-5m",
                "rope_scaling": {"kind": "llama3", "factor": 8, "original_max_sequence_length": 512, "low_frequency_factor": 4},
            },
            "model.rope_scaling",
        ),
    ],
)
def test_a_model_that_cannot_be(refusal: Refusal, model: dict[str, Any], expected: str) -> None:
    assert expected in refusal(model=model)


def test_windows_and_scalings_that_make_sense(tree: Tree) -> None:
    for model in (
        {"preset": "qwen2.5-0.5b", "sliding_window": 512, "full_attention_layers": 23},
        {"preset": "mistral-7b-v0.1"},
        {"preset": "llama-3.1-8b", "max_sequence_length": 1024},
        {"preset": "llama-5m", "rope_scaling": {"kind": "linear", "factor": 2}},
        {"preset": "llama-5m", "rope_scaling": {"kind": "yarn", "factor": 2, "original_max_sequence_length": 1024}},
    ):
        assert accepted({**tree, "model": model})


def test_imported_weights_need_their_own_tokenizer(refusal: Refusal, tree: Tree) -> None:
    message = refusal(model={"hugging_face": "some/folder"})
    assert "data.tokenizer: the weights in model.hugging_face know their own tokens; write path: some/folder" in message
    imported = {**tree, "model": {"hugging_face": "some/folder"}}
    assert accepted(imported, "data.tokenizer.path=some/folder")
    assert accepted(imported, "data.tokenizer.train={vocab_size: 500}")
