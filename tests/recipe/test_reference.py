"""The reference and the JSON Schema: complete, correct, and the committed files are current."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from danlu.errors import UserError
from danlu.recipe import dump, json_schema, parse, reference_markdown
from danlu.recipe.__main__ import main
from danlu.recipe.fields import annotation_at, describe, dotted, every_field, section_class
from danlu.recipe.read import read_text

Tree = dict[str, Any]

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_files_are_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert "recipe.md" in capsys.readouterr().out
    for name in ("recipe.md", "recipe.schema.json"):
        assert (DOCS / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8"), (
            "run python -m danlu.recipe"
        )


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_the_schema_is_valid_and_describes_every_field() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
        for field in section["properties"].values():
            described = field if "description" in field else schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
            assert described["description"]


def test_the_schema_accepts_good_recipes(tree: Tree) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(tree)
    validator.validate(read_text(dump(parse(tree, ["memory.micro_batch=8", "data.tokenizer.train.vocab_size=500"])), "dump")[0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../x"},
        {"name": 3},
        {"learning_rate": 1},
        {"stages": ["sing"]},
        {"stages": []},
        {"model": "llama-5m"},
        {"train": {"stepz": 1}},
        {"train": {"steps": 0}},
        {"train": {"steps": "many"}},
        {"train": {"steps": 1.5}},
        {"train": {"precision": "bfloat16"}},
        {"train": {"optimizer": {"betas": [0.9]}}},
        {"train": {"optimizer": {"betas": [0.9, 1.0]}}},
        {"data": {}},
        {"data": {"sources": []}},
        {"data": {"sources": [{"weight": 1}]}},
        {"data": {"sources": [{"path": "a", "weight": 0}]}},
    ],
)
def test_the_schema_refuses_what_the_recipe_refuses(tree: Tree, wrong: Tree) -> None:
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid({**tree, **wrong})
    with pytest.raises(UserError):
        parse({**tree, **wrong})


def test_the_reference_has_every_field_once() -> None:
    text = reference_markdown()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    rows: list[str] = []
    for part in parts[1:-1]:
        title = part.splitlines()[0]
        section = "" if title == "The whole" else re.findall("`(.*)`", title)[0] + "." + ("0." if "each entry" in title else "")
        rows += [section + name for name in re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)]
    fields: dict[tuple[object, object], str] = {}  # what comes again, such as limits for one language, is described once
    for entry in every_field():
        fields.setdefault((section_class(annotation_at(entry.path[:-1])) or entry.path[:-1], entry.path[-1]), dotted(entry.path))
    assert sorted(rows) == sorted(fields.values())


def test_the_reference_says_type_default_and_meaning() -> None:
    text = reference_markdown()
    assert "| `steps` | a whole number above 0 | `1000` | Optimizer steps. |" in text
    assert "| `name` | text | required | Folder of the run" in text
    assert '| `precision` | fp32, bf16 or fp16 | `"fp32"` |' in text
    assert re.search(r"\| `every` \| a whole number above 0 \| `100` \| .* ↻ \|", text)
    assert "| `num_train_epochs` | `train.steps` | steps = epochs x" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5), line  # no cell breaks the table


def test_the_smallest_recipe_of_the_reference_works() -> None:
    example = re.findall(r"```yaml\n(.*?)```", reference_markdown(), flags=re.DOTALL)[0]
    assert parse(read_text(example, "reference")[0]).name == "first"


def test_every_field_has_a_meaning_and_a_type_in_words() -> None:
    for entry in every_field():
        assert entry.field.description, dotted(entry.path)
        assert describe(entry.path)
    assert describe(("train", "optimizer", "betas", 0)) == "a number from 0 to below 1"
    assert describe(("memory", "micro_batch")) == "a whole number above 0, or null"
    assert describe(("data", "workers")) == "a whole number from 0 to 64"
    assert describe(("generate", "top_p")) == "a number above 0 up to 1"


def test_the_schema_file_is_json() -> None:
    assert json.loads((DOCS / "recipe.schema.json").read_text(encoding="utf-8")) == json_schema()
