"""Dotted overrides: what each does to the tree, and those that fit nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from danlu.recipe import Recipe, parse

Refusal = Callable[..., str]
Tree = dict[str, Any]


def value_at(recipe: Recipe, path: str) -> Any:
    value: Any = recipe
    for name in path.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("override", "path", "expected"),
    [
        ("train.steps=12", "train.steps", 12),
        (" train.steps = 12", "train.steps", 12),
        ("train.optimizer.learning_rate=1e-4", "train.optimizer.learning_rate", 0.0001),
        ("train.optimizer.learning_rate=1", "train.optimizer.learning_rate", 1.0),
        ("train.optimizer.betas.1=0.99", "train.optimizer.betas", [0.9, 0.99]),
        ("train.optimizer={weight_decay: 0}", "train.optimizer.weight_decay", 0.0),
        ("train.compile=true", "train.compile", True),
        ("memory.micro_batch=null", "memory.micro_batch", None),
        ("memory.micro_batch=8", "memory.micro_batch", 8),
        ("data.sources.0.weight=2", "data.sources.0.weight", 2.0),
        ("data.sources.1.path=b.txt", "data.sources.1.path", "b.txt"),
        ("data.sources.0.exclude=[a, b]", "data.sources.0.exclude", ["a", "b"]),
        ("data.sources.0.exclude.0=a", "data.sources.0.exclude", ["a"]),
        ("data.tokenizer.path=a=b.json", "data.tokenizer.path", "a=b.json"),
        ("data.tokenizer.train.vocab_size=500", "data.tokenizer.train.vocab_size", 500),
        ("generate.prompts=['a: b', 从前]", "generate.prompts", ["a: b", "从前"]),
        ("generate.prompts.2=again", "generate.prompts", ["", "The ", "again"]),
        ("generate.prompts.0=no", "generate.prompts.0", "no"),
        ("name=2024-01-01", "name", "2024-01-01"),
        ("stages=[train]", "stages", ["train"]),
    ],
)
def test_an_override_sets_its_field(tree: Tree, override: str, path: str, expected: object) -> None:
    recipe = parse(tree, [override])
    assert value_at(recipe, path) == expected
    assert type(value_at(recipe, path)) is type(expected)


def test_an_override_leaves_its_neighbours(tree: Tree) -> None:
    tree["train"] = {"steps": 7, "optimizer": {"weight_decay": 0.5, "betas": [0.8, 0.9]}}
    recipe = parse(tree, ["train.optimizer.learning_rate=1e-3", "train.optimizer.betas.0=0.7"])
    assert (recipe.train.steps, recipe.train.optimizer.weight_decay, recipe.train.optimizer.betas) == (7, 0.5, [0.7, 0.9])
    assert tree["train"]["optimizer"]["betas"] == [0.8, 0.9]


def test_the_last_override_wins(tree: Tree) -> None:
    recipe = parse(tree, ["train={steps: 3, seed: 5}", "train.steps=4"])
    assert (recipe.train.steps, recipe.train.seed) == (4, 5)
    assert parse(tree, ["train.steps=4", "train={seed: 5}"]).train.steps == 1000


def test_an_override_mends_what_the_file_has_wrong(tree: Tree) -> None:
    assert parse({**tree, "train": {"steps": "many"}}, ["train.steps=4"]).train.steps == 4
    assert parse({**tree, "train": None}, ["train.steps=4"]).train.steps == 4


def test_an_override_can_give_what_the_file_lacks() -> None:
    recipe = parse({"name": "x"}, ["model.preset=llama-5m", "data.sources.0.path=a.txt"])
    assert recipe.data.sources[0].path == "a.txt"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.steps", "override 'train.steps': has no path=value; write it like train.steps=10"),
        ("", "has no path=value"),
        ("train..steps=1", "train.'': no such key"),
        ("train.steps.x=1", "train.steps: holds a whole number above 0, so there is no train.steps.x"),
        ("generate.prompts.0.x=1", "generate.prompts.0: holds text, so there is no"),
        (
            "data.sources.first.weight=2",
            "data.sources.first: no such entry; data.sources is a list, counted from 0, and it has 1",
        ),
        ("data.sources.-1.weight=2", "data.sources.-1: no such entry"),
        ("data.sources.2.path=a", "so 0 to 1 can be set"),
        ("data.sources.9999999999999999999999.path=a", "no such entry"),
        ("data.sources.0.exclude.1=a", "it has none, so begin with 0"),
        ("data.sources.٠.path=a", "no such entry"),
        ("train.steps=[1", "override 'train.steps=[1': is not valid YAML"),
        ("data.sources.0.path=*.txt", "is not valid YAML"),
        ("train.steps=&a 1", "anchors and aliases"),
        ("train.steps=!!python/object/apply:os.system [ls]", "python/object/apply:os.system"),
        ("generate.prompts=" + "[" * 5000, "nested too deeply"),
        ("train={steps: 1, steps: 2}", "steps: given twice; keep one"),
    ],
)
def test_an_override_that_fits_nothing_is_refused(refusal: Refusal, override: str, expected: str) -> None:
    message = refusal(override)
    assert message.startswith("override ")
    assert expected in message


def test_an_override_below_a_wrong_value_says_so(refusal: Refusal) -> None:
    assert "train: 5 is no section, so train.steps cannot be set" in refusal("train.steps=1", train=5)
    assert "is no list, so 0 cannot be set in it" in refusal("generate.prompts.0=a", generate={"prompts": "b"})
