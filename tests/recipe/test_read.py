"""The YAML reader: YAML 1.2's values, the line of every field, and files that are broken or hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import UserError
from danlu.recipe.read import SIZE_LIMIT, read_file, read_text


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        read_text(text, "r.yaml")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_values_are_those_of_yaml_1_2() -> None:
    # YAML 1.2.2, section 10.3.2 (core schema)
    text = """
numbers: [3e-4, 1e3, 0.5, .5, 12, -3, +4, 010, 0x1F, 0o17]
truths: [true, True, FALSE]
words: [yes, no, on, off, y, 12:30, 2024-01-01, =, 1.2.3, "true", '12']
nothing: [null, ~, ]
section: {a: 1}
"""
    content, _ = read_text(text, "r.yaml")
    assert content == {
        "numbers": [0.0003, 1000.0, 0.5, 0.5, 12, -3, 4, 10, 31, 15],
        "truths": [True, True, False],
        "words": ["yes", "no", "on", "off", "y", "12:30", "2024-01-01", "=", "1.2.3", "true", "12"],
        "nothing": [None, None],
        "section": {"a": 1},
    }
    numbers = content["numbers"]
    assert [type(number) for number in numbers] == [float] * 4 + [int] * 6


def test_keys_are_text_however_they_look() -> None:
    content, _ = read_text("12: a\nno: b\ntrue: c\n2024-01-01: d", "r.yaml")
    assert content == {"12": "a", "no": "b", "true": "c", "2024-01-01": "d"}


def test_every_field_has_its_line() -> None:
    _, lines = read_text("a: 1\nb:\n  c:\n    - d\n    - e: 2\n", "r.yaml")
    assert lines[("a",)] == 1
    assert lines[("b", "c")] == 3
    assert lines[("b", "c", 0)] == 4
    assert lines[("b", "c", 1, "e")] == 5


def test_an_empty_text_is_nothing() -> None:
    assert read_text("# only a comment\n", "r.yaml") == (None, {})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: 1\nb: 2\na: 3\n", ["r.yaml:3", "a: given twice", "line 1"]),
        ("train: {steps: 1, steps: 2}", ["r.yaml:1", "train.steps: given twice"]),
        ("a: [1, 2", ["r.yaml:1", "not valid YAML"]),
        ("a:\n\tb: 1", ["r.yaml:2", "spaces, not tabs"]),
        ("a: 1\n---\na: 2", ["r.yaml:2", "one recipe a file"]),
        ("path: {stdlib}/**/*.py", ["r.yaml:1", "quotes"]),
        ("a: 1\npath: *.txt", ["r.yaml:2", "quotes"]),
        ("a: &x 1\nb: *x", ["r.yaml:1", "a: anchors"]),
        ("a: !!python/object/apply:os.system [ls]", ["r.yaml:1", "python/object/apply:os.system", "leave it out"]),
        ("a: !!python/name:os.system", ["r.yaml:1", "python/name:os.system"]),
        ("a: !!set {b, c}", ["tag 'set'"]),
        ("a: !!binary aGk=", ["tag 'binary'"]),
        ("a: !!int many", ["'many'", "int"]),
        ("a: !!bool many", ["'many'", "bool"]),
        ("[a]: 1", ["r.yaml:1", "a key must be a plain word"]),
        ("b: 1\na: \0", ["r.yaml:2", "NUL"]),
        ("b: 1\na: \x07", ["r.yaml:2", "control character", "x07"]),
        ('a: "\\ud800"', ["r.yaml:1: a", "surrogate"]),
        ("a: " + "9" * 100, ["r.yaml:1: a", "too long"]),
        ("a: 0x" + "f" * 100, ["r.yaml:1: a", "too long"]),
    ],
)
def test_broken_text_is_refused_with_its_line(text: str, parts: list[str]) -> None:
    message = refused(text)
    for part in parts:
        assert part in message


def test_aliases_that_multiply_are_refused_at_once() -> None:
    rows = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    rows += [f"{name}: &{name} [{','.join(['*' + before] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)]
    assert refused("\n".join(rows)).startswith("r.yaml:1: a: anchors and aliases"), "at the first, before any is followed"
    merges = ["a: &a {x: 1}"]
    merges += [
        f"{name}: &{name} {{<<: [{','.join(['*' + before] * 9)}]}}" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert refused("\n".join(merges)).startswith("r.yaml:1: a: anchors and aliases")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "? " * 100_000, "[" * 40 + "]" * 40])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "nested too deeply" in refused(text)


def test_text_that_is_almost_as_deep_as_allowed_is_read() -> None:
    content, _ = read_text("[" * 30 + "]" * 30, "r.yaml")
    for _ in range(29):
        assert isinstance(content, list)
        content = content[0]
    assert content == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refuse(path: Path) -> str:
        with pytest.raises(UserError) as caught:
            read_file(path)
        return str(caught.value)

    assert "no such recipe file" in refuse(tmp_path / "absent.yaml")
    assert "is a folder" in refuse(tmp_path)
    assert "cannot be read" in refuse(tmp_path / "a\0b")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (SIZE_LIMIT + 1))
    assert f"larger than {SIZE_LIMIT:_} bytes" in refuse(large)
    endless = Path("/dev/zero")
    if endless.exists():
        assert "larger than" in refuse(endless)


def test_only_utf8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    for raw, byte, way_out in (
        ("name: 炼丹".encode("gb18030"), 6, "it looks like GBK, convert it"),
        ("name: café".encode("latin-1"), 9, "save it as UTF-8"),
        ("name: x".encode("utf-16"), 0, "it looks like UTF-16, convert it"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=f"not UTF-8 \\(byte {byte}\\); {way_out}"):
            read_file(path)
    path.write_bytes(b"\xef\xbb\xbf" + "name: 炼丹 🔥".encode())
    assert read_file(path)[0] == {"name": "炼丹 🔥"}


def test_a_file_at_the_size_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"name: x\n#" + b"x" * (SIZE_LIMIT - 9))
    assert read_file(path)[0] == {"name": "x"}
