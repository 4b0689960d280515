"""Dump, differences from the defaults, and what may not change on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.recipe import Recipe, differences, dump, load, parse, resolve_shape, resume_conflicts
from danlu.recipe.fields import every_field
from danlu.recipe.objective_sections import DistillSection
from danlu.recipe.read import read_text
from danlu.recipe.train_sections import LoraSection

Tree = dict[str, Any]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
models = st.fixed_dictionaries(
    {"preset": st.sampled_from(["llama-5m", "qwen3-0.6b", "llama-3.2-1b"])},
    optional={
        "rope_theta": positive,
        "layers": st.integers(1, 9) | st.none(),
        "rope_scaling": st.none(),
        "norm_epsilon": positive,
    },
)
recipes = st.builds(
    lambda model, sources, optimizer, rest: {
        "name": "x",
        "model": model,
        "data": {"sources": sources},
        "train": {"optimizer": optimizer, **rest},
    },
    models,
    st.lists(
        st.fixed_dictionaries({"path": texts}, optional={"exclude": st.lists(texts), "text": texts}), min_size=1, max_size=3
    ),
    st.fixed_dictionaries(
        {}, optional={"learning_rate": positive, "betas": st.lists(st.floats(0, 0.99), min_size=2, max_size=2)}
    ),
    st.fixed_dictionaries({}, optional={"seed": st.integers(0, 2**63 - 1), "compile": st.booleans()}),
)


@settings(max_examples=50, deadline=None)
@given(recipes, st.lists(texts, min_size=1))
def test_a_dumped_recipe_is_read_back_equal(tree: Tree, prompts: list[str]) -> None:
    recipe = parse({**tree, "generate": {"prompts": prompts}})
    again = parse(read_text(dump(recipe), "dump")[0])
    assert again == recipe
    assert dump(again) == dump(recipe)
    assert resolve_shape(again, 9000) == resolve_shape(recipe, 9000)
    assert differences(again) == differences(recipe)
    assert resume_conflicts(recipe, again) == []


def test_a_dump_is_loaded_from_a_file(tmp_path: Path, tree: Tree) -> None:
    recipe = parse(tree, ["generate.prompts=['从前', '']", "data.sources.0.path='{stdlib}/**/*.py'"])
    (tmp_path / "recipe.yaml").write_text(dump(recipe), encoding="utf-8")
    assert load(tmp_path / "recipe.yaml") == recipe


def test_a_dump_has_every_field_in_the_order_of_the_types(tree: Tree) -> None:
    text = dump(parse(tree))
    content, lines = read_text(text, "dump")
    sections = {"lora": LoraSection, "distill": DistillSection}  # which are null
    absent = {("train", above, name) for above, section in sections.items() for name in section.model_fields}
    absent.add(("data", "tokenizer", "train"))
    wanted = [
        entry.path
        for entry in every_field()
        if entry.path[0] != "model" and entry.path[:3] not in absent and entry.path[:2] != ("data", "curate")
    ]
    assert ("data", "curate") in lines  # null here, as the tokenizer's training is
    assert [path for path in wanted if path not in lines] == []
    assert sorted(wanted, key=lambda path: (lines[path], len(path))) == wanted
    assert isinstance(content, dict)
    assert content["model"] == {"preset": "llama-5m"}  # a default beside a preset would override it


def test_the_smallest_recipe_differs_by_its_preset_alone(tree: Tree) -> None:
    assert differences(parse(tree)) == [("model.preset", "llama-5m", None)]


def test_differences_are_named_with_value_and_default(tree: Tree) -> None:
    overrides = [
        "train.steps=5",
        "train.optimizer.betas.1=0.99",
        "data.sources.0.weight=2",
        "data.tokenizer.train.vocab_size=500",
    ]
    assert differences(parse(tree, [*overrides, "train.seed=0"])) == [
        ("model.preset", "llama-5m", None),
        ("data.sources.0.weight", 2.0, 1.0),
        ("data.tokenizer.train", {"vocab_size": 500, "sample_bytes": 100_000_000}, None),
        ("train.steps", 5, 1000),
        ("train.optimizer.betas", [0.9, 0.99], [0.9, 0.95]),
    ]


def test_beside_a_preset_its_values_are_the_defaults(tree: Tree) -> None:
    model = {"preset": "qwen3-0.6b", "layers": 28, "rope_theta": 10000.0, "kv_heads": None, "vocab_size": 9000}
    assert differences(parse({**tree, "model": model}))[:4] == [
        ("model.preset", "qwen3-0.6b", None),
        ("model.vocab_size", 9000, 151_936),
        ("model.kv_heads", None, 8),
        ("model.rope_theta", 10000.0, 1_000_000.0),
    ]


def test_beside_a_checkpoint_its_values_are_the_defaults(tree: Tree) -> None:
    data = {**tree["data"], "tokenizer": {"path": "folder"}}
    found = differences(parse({**tree, "model": {"hugging_face": "folder", "rope_theta": 10000.0}, "data": data}))
    assert ("model.rope_theta", 10000.0, "from the checkpoint") in found
    assert ("model.hugging_face", "folder", None) in found


RESUMABLE = [
    "stages=[train]",
    "data.workers=3",
    "train.evaluate_every=7",
    "train.evaluate_tokens=70",
    "train.non_finite_limit=9",
    "generate.prompts=[a]",
    "generate.seed=4",
    "watch.print_every=3",
    "checkpoint.every=3",
    "checkpoint.keep=1",
    "parallel.data=2",
    "parallel.tensor=2",
    "parallel.pipeline=2",
    "parallel={data: 2, zero_stage: 3}",
    "parallel={pipeline: 2, schedule: interleaved}",
    "parallel={tensor: 2, sequence_parallel: true}",
    "memory.micro_batch=8",
    "memory.recompute=full",
    "memory.recompute_every=2",
]


@pytest.mark.parametrize("override", RESUMABLE)
def test_what_does_not_change_the_training_may_change_on_resume(tree: Tree, override: str) -> None:
    tree = {**tree, "memory": {"micro_batch": 16}}  # what the interleaved schedule needs
    assert parse(tree, [override]) != parse(tree)
    assert resume_conflicts(parse(tree), parse(tree, [override])) == []


@pytest.mark.parametrize(
    ("override", "conflict"),
    [
        ("train.seed=1", ("train.seed", 0, 1)),
        ("train.optimizer.learning_rate=1e-4", ("train.optimizer.learning_rate", 0.0003, 0.0001)),
        ("data.sources.0.weight=2", ("data.sources.0.weight", 1.0, 2.0)),
        ("data.sequence_length=64", ("data.sequence_length", 512, 64)),
        ("data.tokenizer.train.vocab_size=500", ("data.tokenizer.train.vocab_size", 8192, 500)),
        ("train.schedule.warmup_steps=5", ("train.schedule.warmup_steps", 60, 5)),
        ("model.layers=3", ("model.layers", 4, 3)),
        ("model.vocab_size=9000", ("model.vocab_size", 8192, 9000)),
        ("name=second", ("name", "first", "second")),
    ],
)
def test_what_changes_the_training_is_a_conflict(tree: Tree, override: str, conflict: tuple[str, object, object]) -> None:
    old, new = parse(tree), parse(tree, [override])
    assert resume_conflicts(old, new) == [conflict]
    assert resume_conflicts(new, old) == [(conflict[0], conflict[2], conflict[1])]


@pytest.mark.parametrize(
    "override",
    ["train.schedule.warmup_steps=60", "train.schedule.warmup_fraction=0.06", "memory.micro_batch=32", "data.tokenizer.train={}"],
)
def test_a_default_that_is_written_is_no_conflict(tree: Tree, override: str) -> None:
    assert parse(tree, [override]) != parse(tree)
    assert resume_conflicts(parse(tree), parse(tree, [override])) == []


def test_all_that_differs_is_a_conflict(tree: Tree) -> None:
    conflicts = resume_conflicts(parse(tree), parse(tree, ["train.steps=500", "train.seed=3"]))
    assert conflicts == [("train.steps", 1000, 500), ("train.schedule.warmup_steps", 60, 30), ("train.seed", 0, 3)]


def test_a_source_more_or_less_is_a_conflict(tree: Tree) -> None:
    more = parse(tree, ["data.sources.1.path=b.txt"])
    assert ("data.sources.1.path", None, "b.txt") in resume_conflicts(parse(tree), more)
    assert ("data.sources.1.path", "b.txt", None) in resume_conflicts(more, parse(tree))


def test_the_same_model_said_differently_is_no_conflict(tree: Tree) -> None:
    spelled_out = {
        "layers": 4,
        "hidden_size": 256,
        "ffn_size": 688,
        "heads": 4,
        "vocab_size": 8192,
        "max_sequence_length": 2048,
        "tied_embeddings": True,
    }
    same, other = parse({**tree, "model": spelled_out}), parse({**tree, "model": spelled_out | {"tied_embeddings": False}})
    assert resume_conflicts(parse(tree), same) == []
    assert resume_conflicts(parse(tree), other) == [("model.tied_embeddings", True, False)]
    # the same words beside a preset can be another model: null replaces the preset's grouping
    grouped = {**tree, "model": {"preset": "llama-3.2-1b"}}
    assert resume_conflicts(parse(grouped), parse(grouped, ["model.kv_heads=null"])) == [("model.kv_heads", 8, None)]


def test_another_checkpoint_is_a_conflict(tree: Tree) -> None:
    data = {**tree["data"], "tokenizer": {"path": "folder"}}

    def imported(**model: Any) -> Recipe:
        return parse({**tree, "model": model, "data": data})

    assert resume_conflicts(imported(hugging_face="a"), imported(hugging_face="b")) == [("model.hugging_face", "a", "b")]
    assert resume_conflicts(imported(hugging_face="a"), imported(hugging_face="a", rope_theta=5.0)) == [
        ("model.rope_theta", None, 5.0)
    ]
