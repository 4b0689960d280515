"""The YAML writer: what it writes is read back the same, by danlu's reader and by ruamel's own loader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from danlu.recipe.read import read_text
from danlu.recipe.write import yaml_scalar, yaml_text

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | texts
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
trees = st.dictionaries(
    keys,
    st.recursive(scalars, lambda inner: st.lists(scalars, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8)
    | st.lists(st.dictionaries(keys, scalars, min_size=1, max_size=3), max_size=3),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_a_tree_survives(tree: dict[str, Any]) -> None:
    content, _ = read_text(yaml_text(tree), "r.yaml")
    assert repr(content) == repr(tree)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,10}", fullmatch=True), scalars | st.lists(scalars), min_size=1, max_size=3))
def test_another_reader_agrees(tree: dict[str, Any]) -> None:
    assert YAML(typ="safe", pure=True).load(yaml_text(tree)) == tree


LIKE_OTHER_VALUES = [
    "",
    "null",
    "~",
    "true",
    "No",
    "1",
    "1.5",
    "3e-4",
    "0x1F",
    "2024-01-01",
    "1:30",
    "=",
    "<<",
    ".inf",
    "e3",
    "_1",
]
LIKE_SYNTAX = [
    "- a",
    "a: b",
    "a #b",
    "#",
    "*a",
    "&a",
    "{a}",
    "[a]",
    "!a",
    "%a",
    "@a",
    "`a`",
    "'",
    '"',
    "\\",
    "---",
    "...",
    "|",
    ">",
    "? a",
]
CONTROL = [" ", "a ", "a  b", "a\nb", "a\r\nb", "\t", "\x00", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ufeff", "\uffff"]
FOREIGN = ["从前", "🔥", "a" * 5000, "{stdlib}/**/*.py"]


@pytest.mark.parametrize("text", [*LIKE_OTHER_VALUES, *LIKE_SYNTAX, *CONTROL, *FOREIGN])
def test_odd_texts_survive(text: str) -> None:
    tree = {"a": text, "b": [text, text], "c": [{"d": text}], "e": {"f": [text] * 40}}
    written = yaml_text(tree)
    assert read_text(written, "r.yaml")[0] == tree
    assert YAML(typ="safe", pure=True).load(written) == tree


def test_it_reads_well() -> None:
    tree = {
        "name": "first",
        "path": "a/*.txt",
        "rate": 3e-4,
        "list": ["train", "中文"],
        "entries": [{"a": 1, "b": None}, {"a": 2}],
        "s": {"t": True},
    }
    assert yaml_text(tree) == (
        'name: first\npath: "a/*.txt"\nrate: 0.0003\nlist: [train, "中文"]\n'
        "entries:\n  - a: 1\n    b: null\n  - a: 2\ns:\n  t: true\n"
    )


def test_long_lists_are_one_entry_a_line() -> None:
    assert yaml_text({"a": ["word"] * 30}) == "a:\n" + "  - word\n" * 30
    assert yaml_scalar({"a": ["x", {"b": 1}]}) == "{a: [x, {b: 1}]}"
