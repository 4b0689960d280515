"""Loading: good recipes, and every kind of wrong field with the line that refuses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import UserError
from danlu.recipe import load, parse

Refusal = Callable[..., str]
Tree = dict[str, Any]

GOOD = """\
name: shakespeare
model: {preset: llama-5m}
data:
  sources: [{path: corpus/*.txt, weight: 2}]
train:
  optimizer: {learning_rate: 3e-4}
generate:
  prompts: ["从前", 'def ']
"""


def refused_file(folder: Path, text: str, *overrides: str) -> str:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).replace(str(path), "r.yaml")


def test_a_recipe_is_loaded_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD, encoding="utf-8")
    recipe = load(path)
    assert recipe == load(str(path))
    assert (recipe.name, recipe.train.optimizer.learning_rate, recipe.data.sources[0].weight) == ("shakespeare", 0.0003, 2.0)
    assert recipe.generate.prompts == ["从前", "def "]
    assert (recipe.train.steps, recipe.micro_batch, recipe.accumulation, recipe.warmup_steps) == (1000, 32, 1, 60)


def test_a_file_and_a_tree_give_the_same(tmp_path: Path, tree: Tree) -> None:
    path = tmp_path / "r.yaml"
    path.write_text('name: first\nmodel: {preset: llama-5m}\ndata: {sources: [{path: "corpus/*.txt"}]}', encoding="utf-8")
    before = repr(tree)
    assert load(path, ["train.steps=3"]) == parse(tree, ["train.steps=3"])
    assert repr(tree) == before


@pytest.mark.parametrize("content", ["", "# nothing", "- a\n- b", "llama", "12", "null", "{}", "[]"])
def test_what_is_no_recipe_is_refused(tmp_path: Path, content: str) -> None:
    message = refused_file(tmp_path, content)
    assert message.startswith("r.yaml")
    assert "begins with name:, model: and data:" in message


@pytest.mark.parametrize("tree", [None, [], {}, 3, "text", [{"name": "x"}], ()])
def test_what_is_no_tree_of_a_recipe_is_refused(tree: object) -> None:
    with pytest.raises(UserError, match="a recipe is `key: value` lines"):
        parse(tree)


def test_an_error_names_file_line_and_field(tmp_path: Path) -> None:
    message = refused_file(tmp_path, GOOD.replace("3e-4", "fast"))
    assert message == "r.yaml:6: train.optimizer.learning_rate: must be a number above 0, but is the text 'fast'"
    # what is missing has the line of its section
    assert refused_file(tmp_path, GOOD.replace("path:", "text:")).startswith(
        "r.yaml:4: data.sources.0.path: missing; give text (File,"
    )
    # a contradiction too
    assert refused_file(tmp_path, GOOD + "train_:\n").startswith("r.yaml:9: train_: no such key; did you mean train?")
    assert refused_file(tmp_path, GOOD + "memory:\n  micro_batch: 5\n").startswith("r.yaml:5: train.global_batch: 32 is not")


def test_an_error_of_an_override_names_the_override(tmp_path: Path) -> None:
    message = refused_file(tmp_path, GOOD, "train.steps=10", "train.optimizer.learning_rate=-1")
    assert message.startswith(
        "override 'train.optimizer.learning_rate=-1': train.optimizer.learning_rate: must be a number above 0"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.steps=3.0", "train.steps: must be a whole number above 0, but is 3.0; write 3"),
        ("train.steps=3.5", "train.steps: must be a whole number above 0, but is 3.5"),
        ("train.steps=0", "must be a whole number above 0, but is 0"),
        ("train.steps=", "train.steps: must be a whole number above 0, but is empty (null)"),
        ("train.steps='10'", "but is the text '10'; write 10, without quotes"),
        ("train.steps=1,000", "but is the text '1,000'; write 1000, without quotes"),
        ("train.steps=true", "but is true"),
        ("train.steps=[1, 2]", "but is a list of 2"),
        ("train.steps={a: 1}", "but is a section"),
        ("train.seed=0xffffffffffffffffffffffffffffffffff", "from 0 to below 2^63, but is a huge number"),
        ("train.compile=yes", "train.compile: must be true or false, but is the text 'yes'; write true"),
        ("train.compile=off", "write false"),
        ("train.compile=1", "must be true or false, but is 1"),
        ("train.precision=bfloat16", "must be fp32, bf16 or fp16, but is the text 'bfloat16'; did you mean bf16?"),
        ("train.precision=BF16", "did you mean bf16?"),
        ("train.engine=pytorch", "did you mean torch?"),
        ("train.device=gpu", "did you mean cuda?"),
        ("train.schedule.name=cosin", "did you mean cosine?"),
        ("train.optimizer.name=lion", "train.optimizer.name: must be adamw, but is the text 'lion'"),
        ("train.optimizer.learning_rate=.inf", "but is inf"),
        ("train.optimizer.learning_rate=.nan", "but is nan"),
        ("train.optimizer.betas=[0.9]", "a list of exactly 2, each a number from 0 to below 1, but is a list of 1"),
        ("train.optimizer.betas=[0.9, 1]", "train.optimizer.betas.1: must be a number from 0 to below 1, but is 1"),
        ("data.validation_fraction=1", "a number from 0 to below 1, but is 1"),
        ("data.sources.0.weight=101", "a number above 0 up to 100, but is 101"),
        ("data.workers=65", "a whole number from 0 to 64, but is 65"),
        ("data.tokenizer.train.vocab_size=1e5", "from 300 to 1000000, but is 100000.0; write 100000"),
        ("data.sources=[]", "data.sources: must be a list of at least 1"),
        ("data.sources=a.txt", "write [{path: a.txt}]"),
        ('data.sources="*.txt"', 'write [{path: "*.txt"}]'),
        (
            "data.sources=[a.txt]",
            "data.sources.0: must be a section (`key: value` lines), but is the text 'a.txt'; write {path: a.txt}",
        ),
        ("generate.prompts=hello", "each text, but is the text 'hello'; write [hello]"),
        ("generate.prompts=[12]", "generate.prompts.0: must be text, but is 12; put it in quotes"),
        ("model=llama-5m", "model: must be a section (`key: value` lines), but is the text 'llama-5m'; write {preset: llama-5m}"),
        ("model=", "but is empty (null); give its keys, indented below it"),
        ("train=", "but is empty (null); give its keys, indented below it, or leave it out"),
        ("train=[]", "train: must be a section (`key: value` lines), but is an empty list"),
        ("train=auto", "only parallel and memory can be auto"),
        (
            "stages=[train, evalute]",
            "stages.1: must be prepare, train, evaluate, generate or export, but is the text 'evalute'; did you mean",
        ),
        ("name=../up", "the text '../up' does not fit (Folder of the run"),
        ("name=exp.lock", "name: exp.lock ends in .lock, as the files do by which runs are guarded; give another, such as"),
        ("name=exp.Partial", "name: exp.Partial ends in .partial, "),
        ("name=12", "name: must be text, but is 12; put it in quotes"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(refusal: Refusal, override: str, expected: str) -> None:
    assert expected in refusal(override)


def test_what_is_missing_is_named(refusal: Refusal) -> None:
    with pytest.raises(
        UserError, match=r"name: missing; give text \(Folder of the run.*\(and 2 more to mend: model, data\.sources\)"
    ):
        parse({"data": {}})
    scaling = refusal("model.rope_scaling.factor=2")
    assert "model.rope_scaling.kind: missing; give linear, llama3 or yarn" in scaling


def test_several_errors_are_told_as_the_first_and_the_names_of_the_others(refusal: Refusal) -> None:
    message = refusal("train.steps=0", "train.seed=-1", "memory.micro_batch=0")
    assert "train.steps: must be a whole number above 0" in message
    assert message.endswith("(and 2 more to mend: train.seed, memory.micro_batch)")
    assert refusal(**{f"k{index}": 1 for index in range(9)}).endswith("(and 8 more to mend: k1, k2, k3, ...)")


def test_an_unknown_key_comes_first_and_spares_the_field_it_meant(refusal: Refusal) -> None:
    message = refusal("train.steps=0", data={"sorces": []})
    assert "data.sorces: no such key; did you mean data.sources?" in message
    assert message.endswith("(and 1 more to mend: train.steps)")


@pytest.mark.parametrize("key", ["a\nb", "a\x1b[31m", "\ud800", " ", "x" * 1000, "键", 3, None])
def test_odd_keys_stay_on_one_short_line(tree: Tree, key: Any) -> None:
    with pytest.raises(UserError) as caught:
        parse({**tree, key: 1})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400


def test_values_that_are_no_yaml_are_refused(refusal: Refusal) -> None:
    looped: list[Any] = []
    looped.append(looped)
    assert "stages.0: must be prepare" in refusal(stages=looped)
    assert "a Python bytes" in refusal(name=b"x")
    assert "a Python tuple" in refusal(generate={"prompts": ("a",)})
    assert "..." in refusal(name="x" * 100_000)
    assert refusal(name="a\nb").isprintable()


def test_importing_the_room_is_light() -> None:
    code = "import sys, danlu.recipe; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'pydantic'" in loaded
    for heavy in ("torch", "paddle", "tokenizers", "pyarrow", "transformers", "numpy"):
        assert f"'{heavy}'" not in loaded
