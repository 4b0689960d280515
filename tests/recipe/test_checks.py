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


# Layouts


def test_the_global_batch_must_divide_by_the_replicas(refusal: Refusal, tree: Tree) -> None:
    message = refusal("train.global_batch=32", "parallel.data=5")
    assert "train.global_batch: 32 is not divisible by parallel.data (5); give 30 or 35" in message
    for batch in (30, 35):
        assert accepted(tree, f"train.global_batch={batch}", "parallel.data=5")
    message = refusal("train.global_batch=32", "parallel.data=4", "memory.micro_batch=3")
    assert "32 is not divisible by memory.micro_batch (3) x parallel.data (4); give train.global_batch 24 or 36" in message
    assert "or memory.micro_batch 2 or 4" in message
    assert accepted(tree, "train.global_batch=24", "parallel.data=4", "memory.micro_batch=3")
    assert accepted(tree, "train.global_batch=32", "parallel.data=4", "memory.micro_batch=2")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_splits_over_replicas(refusal: Refusal, tree: Tree, stage: int) -> None:
    message = refusal(f"parallel.zero_stage={stage}")
    assert f"parallel.zero_stage: {stage} splits over data ranks; give parallel.data 2 or more, or zero_stage 0" in message
    assert accepted(tree, f"parallel.zero_stage={stage}", "parallel.data=2")
    assert accepted(tree, "parallel.zero_stage=0")


def test_there_is_no_zero_stage_four(refusal: Refusal) -> None:
    assert "parallel.zero_stage" in refusal("parallel.zero_stage=4", "parallel.data=2")


def test_zero_2_has_no_pipeline(refusal: Refusal, tree: Tree) -> None:
    message = refusal("parallel={pipeline: 2, data: 2, zero_stage: 2}", "memory.micro_batch=8")
    assert "parallel.zero_stage: 2 with a pipeline would reduce whole gradients after every micro-batch; give 1, or 3" in message
    for stage in (0, 1, 3):
        assert accepted(tree, f"parallel={{pipeline: 2, data: 2, zero_stage: {stage}}}", "memory.micro_batch=8")


def test_sequence_parallelism_needs_tensor_ranks(refusal: Refusal, tree: Tree) -> None:
    message = refusal("parallel.sequence_parallel=true")
    assert "parallel.sequence_parallel: splits over tensor ranks; give parallel.tensor 2 or more, or leave it out" in message
    assert accepted(tree, "parallel={tensor: 2, sequence_parallel: true}")


def test_sequence_parallelism_splits_the_sequence(refusal: Refusal, tree: Tree) -> None:
    message = refusal("parallel={tensor: 2, sequence_parallel: true}", "data.sequence_length=511")
    assert "data.sequence_length: 511 is not divisible by parallel.tensor (2), as sequence_parallel needs" in message
    assert "give 510 or 512" in message
    for length in (510, 512):
        assert accepted(tree, "parallel={tensor: 2, sequence_parallel: true}", f"data.sequence_length={length}")
    assert accepted(tree, "parallel.tensor=2", "data.sequence_length=511")


@pytest.mark.parametrize("name", ["interleaved", "zero-bubble"])
def test_two_stages_a_rank_need_a_pipeline_and_rounds_of_micro_batches(refusal: Refusal, tree: Tree, name: str) -> None:
    message = refusal(f"parallel.schedule={name}")
    assert f"parallel.schedule: {name} orders a pipeline; give parallel.pipeline 2 or more, or leave it out" in message
    message = refusal(f"parallel={{pipeline: 2, schedule: {name}}}")
    assert f"{name} runs micro-batches in rounds of parallel.pipeline (2), and a step has 1" in message
    assert "choose memory.micro_batch such that it divides" in message
    assert accepted(tree, f"parallel={{pipeline: 2, schedule: {name}}}", "memory.micro_batch=16")
    assert "and a step has 1" in refusal(f"parallel={{pipeline: 2, schedule: {name}, data: 2}}", "memory.micro_batch=16")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("memory.recompute=full", "memory.recompute (full)"),
        ("memory.recompute=selective", "memory.recompute (selective)"),
        ("train.compile=true", "train.compile"),
        ("parallel.zero_stage=3", "parallel.zero_stage (3)"),
    ],
)
def test_zero_bubble_refuses_what_cannot_follow_two_backward_passes(
    refusal: Refusal, tree: Tree, override: str, named: str
) -> None:
    common = ("parallel.pipeline=2", "parallel.data=2", "memory.micro_batch=8", override)
    message = refusal("parallel.schedule=zero-bubble", *common)
    assert f"parallel.schedule: zero-bubble splits the backward pass in two, which {named} cannot follow" in message
    assert "give 1f1b or interleaved, or leave the other out" in message
    assert accepted(tree, *common)
    assert accepted(tree, "parallel.schedule=zero-bubble", *common[:3], "parallel.zero_stage=1")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ("parallel.pipeline=2",),
            "2 ranks work on as many micro-batches at a time, and a step has 1; give memory.micro_batch 16",
        ),
        (("parallel.pipeline=4", "memory.micro_batch=16"), "and a step has 2; give memory.micro_batch 8"),
        (("parallel={pipeline: 4, data: 2}", "train.global_batch=36"), "and a step has 1; give memory.micro_batch 3"),
        (("parallel={pipeline: 4, data: 2}", "train.global_batch=6"), "and a step has 1; give train.global_batch 8 or more"),
    ],
)
def test_a_pipeline_needs_as_many_micro_batches_as_ranks(
    refusal: Refusal, tree: Tree, overrides: tuple[str, ...], expected: str
) -> None:
    message = refusal(*overrides)
    assert "parallel.pipeline: " in message and expected in message
    way_out = expected.split("give ")[1].removesuffix(" or more").replace(" ", "=")
    also = ("memory.micro_batch=1",) if "global_batch" in way_out else ()
    assert accepted(tree, *overrides, way_out, *also)


@pytest.mark.parametrize(
    ("model", "tensor", "expected"),
    [
        ({"preset": "llama-5m", "kv_heads": 4}, 8, "8 does not divide model.heads (4); give 1, 2 or 4"),
        ({"preset": "llama-5m", "kv_heads": 2}, 4, "4 does not divide model.kv_heads (2); give 1 or 2"),
        ({"preset": "llama-5m", "ffn_size": 514, "kv_heads": 4}, 4, "4 does not divide model.ffn_size (514); give 1 or 2"),
    ],
)
def test_heads_and_mlp_must_divide_by_the_tensor_ranks(
    refusal: Refusal, tree: Tree, model: Tree, tensor: int, expected: str
) -> None:
    assert f"parallel.tensor: {expected}" in refusal(f"parallel.tensor={tensor}", model=model)
    assert accepted({**tree, "model": model}, "parallel.tensor=2")


def test_more_stages_than_layers(refusal: Refusal, tree: Tree) -> None:
    message = refusal("parallel.pipeline=5", "model.layers=4", "memory.micro_batch=4")
    assert "parallel.pipeline: 5 makes 5 stages of 4 layers; give at most 4" in message
    assert accepted(tree, "parallel.pipeline=4", "model.layers=4", "memory.micro_batch=4")
    interleaved = "parallel={pipeline: 4, schedule: interleaved}"
    message = refusal(interleaved, "model.layers=5", "memory.micro_batch=8")
    assert "parallel.pipeline: 4 makes 8 stages of 5 layers; give at most 2" in message
    assert accepted(tree, "parallel={pipeline: 2, schedule: interleaved}", "model.layers=5", "memory.micro_batch=8")


def test_degrees_are_positive(refusal: Refusal) -> None:
    for name in ("data", "tensor", "pipeline"):
        assert f"parallel.{name}" in refusal(f"parallel.{name}=0")


# Models and data


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


# Memory


@pytest.mark.parametrize("place", ["host", "disk"])
def test_parameters_are_offloaded_as_shards(refusal: Refusal, tree: Tree, place: str) -> None:
    message = refusal("parallel.data=2", "parallel.zero_stage=2", f"memory.offload_parameters={place}")
    assert f"memory.offload_parameters: {place} is for the shards of ZeRO 3; give parallel.zero_stage 3, or none" in message
    assert accepted(tree, "parallel.data=2", "parallel.zero_stage=3", f"memory.offload_parameters={place}")


def test_what_compiling_hides(refusal: Refusal, tree: Tree) -> None:
    zero_3 = ("parallel.data=2", "parallel.zero_stage=3")
    assert "memory.offload_parameters: disk" in refusal(*zero_3, "memory.offload_parameters=disk", "train.compile=true")
    assert "watch.memory: true" in refusal("watch.memory=true", "train.compile=true")
    assert accepted(tree, "memory.offload_optimizer=disk", "train.compile=true")
    assert "train.compile" in refusal("generate.every=5", "train.compile=true")
    staged = ("generate.every=5", "parallel.pipeline=2", "train.global_batch=8", "memory.micro_batch=1")
    assert accepted(tree, "generate.every=5", *zero_3) and accepted(tree, *staged)
    assert "parallel.schedule (interleaved)" in refusal(*staged, "parallel.schedule=interleaved")
