from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.data.sources import format_of, matches, resolve
from danlu.errors import UserError
from danlu.recipe.data_sections import Source


def source(path: Path | str, **settings: object) -> Source:
    return Source.model_validate({"path": str(path), **settings})


def names(root: Path, *sources: Source) -> list[str]:
    return [os.path.relpath(file.path, root) for file in resolve(sources).files]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ["b.txt", "a.md", "x/c.py", "x/tests/t.py", "x/y/d.jsonl.gz", "site-packages/p.py", "tests/q.txt", "x/z.parquet"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "picture.png").write_bytes(b"1")
    (tmp_path / "x" / "other.PNG").write_bytes(b"1")
    (tmp_path / "Makefile").write_bytes(b"1")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "secret.txt").write_text("1")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", ("whole", "")),
        ("A.TXT", ("whole", "")),
        ("a.tar.jsonl.zst", ("lines", ".zst")),
        ("a.json.gz", ("json", ".gz")),
        ("a.py.gz", ("whole", ".gz")),
        ("a.parquet", ("parquet", "")),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("a.csv", ("table", "")),
        ("a.xls", None),
        ("txt", None),
    ],
)
def test_formats(name: str, expected: tuple[str, str] | None) -> None:
    assert format_of(name) == expected


def test_folder_is_read_to_any_depth_sorted_with_the_rest_counted(tree: Path) -> None:
    listing = resolve([source(tree)])
    found = [os.path.relpath(file.path, tree) for file in listing.files]
    assert found == sorted(found)
    assert len(found) == 8
    assert listing.ignored == {".png": 2, "without a suffix": 1, "hidden": 1}
    assert listing.size == sum(len(name) for name in found)
    assert listing.fingerprints[0]["files"] == 8


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["b.txt"]),
        ("*", ["a.md", "b.txt"]),
        ("**/*.py", ["site-packages/p.py", "x/c.py", "x/tests/t.py"]),
        ("x/*.p*", ["x/c.py", "x/z.parquet"]),
        ("x/**", ["x/c.py", "x/tests/t.py", "x/y/d.jsonl.gz", "x/z.parquet"]),
        ("**/tests/*", ["tests/q.txt", "x/tests/t.py"]),
        ("[ab].*", ["a.md", "b.txt"]),
        ("x/?.py", ["x/c.py"]),
    ],
)
def test_globs(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(tree, source(tree / pattern)) == expected


@pytest.mark.parametrize(
    ("exclude", "gone"),
    [
        (["tests"], {"x/tests/t.py", "tests/q.txt"}),
        (["tests/**"], {"tests/q.txt"}),
        (["**/tests"], {"x/tests/t.py", "tests/q.txt"}),
        (["x/tests", "site-packages/"], {"x/tests/t.py", "site-packages/p.py"}),
        (["*.py"], {"x/c.py", "x/tests/t.py", "site-packages/p.py"}),
    ],
)
def test_excludes(tree: Path, exclude: list[str], gone: set[str]) -> None:
    everything = set(names(tree, source(tree)))
    assert set(names(tree, source(tree, exclude=exclude))) == everything - gone


def test_an_exclude_without_effect_is_said(tree: Path) -> None:
    assert resolve([source(tree, exclude=["tests", "nothing-like-this"])]).notes == [
        "data.sources[0].exclude[1]: 'nothing-like-this' leaves nothing out"
    ]
    assert "no effect" in resolve([source(tree / "b.txt", exclude=["a"])]).notes[0]


@given(st.lists(st.sampled_from(["a", "b"]), max_size=5), st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=5))
def test_matching_agrees_with_a_regular_expression(path: list[str], pattern: list[str]) -> None:
    import re

    expression = "".join({"*": "[^/]+/", "**": "(?:[^/]+/)*"}.get(part, f"{part}/") for part in pattern)
    assert matches(path, pattern) == bool(re.fullmatch(expression, "".join(f"{part}/" for part in path)))


def test_links_in_circles_end_and_each_folder_is_read_once(tree: Path) -> None:
    (tree / "x" / "up").symlink_to(tree)
    (tree / "aaa").symlink_to(tree / "x")
    (tree / "self.txt").symlink_to(tree / "self.txt")
    (tree / "gone.txt").symlink_to(tree / "not-there.txt")
    listing = resolve([source(tree)])
    assert len(listing.files) == 8
    assert not any("/aaa/" in file.path or "/up/" in file.path for file in listing.files), "the real name is preferred"
    assert listing.ignored["broken link"] == 2


def test_a_linked_folder_outside_is_followed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "o.txt").write_text("o")
    (tree / "linked").symlink_to(outside)
    assert "linked/o.txt" in names(tree, source(tree))


def test_what_is_no_regular_file_is_not_opened(tree: Path) -> None:
    os.mkfifo(tree / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "s.txt"))
        assert resolve([source(tree)]).ignored["not a regular file"] == 2
    with pytest.raises(UserError, match=r"data\.sources\[0\]\.path: .*pipe\.txt'?: is not a regular file"):
        resolve([source(tree / "pipe.txt")])


def test_stdlib_and_home(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert names(tree, source("~/b.txt")) == ["b.txt"]
    files = resolve([source("{stdlib}/*.py")]).files
    assert any(file.path == os.path.join(sysconfig.get_path("stdlib"), "abc.py") for file in files)


def test_the_stdlib_is_without_what_is_installed_in_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "x" / "dist-packages").mkdir()
    (tree / "x" / "dist-packages" / "d.py").write_text("d")
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tree)}.__getitem__)
    everything = names(tree, source(tree))
    own = [name for name in everything if "-packages/" not in name]
    assert len(own) == len(everything) - 2
    assert names(tree, source("{stdlib}")) == own
    assert names(tree, source("{stdlib}/**/*.py")) == [name for name in own if name.endswith(".py")]
    assert names(tree, source("{stdlib}/site-packages")) == ["site-packages/p.py"], "unless it is named"
    assert resolve([source("{stdlib}", exclude=["**/site-packages/**"])]).notes == []


def test_files_in_several_sources_are_said(tree: Path) -> None:
    def notes(*paths: Path) -> list[str]:
        return resolve([source(path) for path in paths]).notes

    assert notes(tree / "x", tree / "tests") == []
    both = "data.sources: {} are in more than one source, and are read once for each"
    assert notes(tree, tree / "x" / "*.py", tree / "b.txt", tree / "b.txt") == [both.format("2 files")]
    (tree / "linked").symlink_to(tree / "x")
    assert notes(tree / "x", tree / "linked") == [both.format("4 files")]


def test_a_name_with_wildcards_that_exists_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "data[1].txt").write_text("1")
    (tmp_path / "data1.txt").write_text("2")
    assert names(tmp_path, source(tmp_path / "data[1].txt")) == ["data[1].txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.txt", "there is no such file or folder"),
        ("missing/*.txt", "there is no folder"),
        ("b.txt/c", "there is no such file or folder"),
        ("*.jsonl", "no file that can be read"),
        ("picture.png", "not a kind that is read; these are: .txt"),
        ("Makefile", "not a kind that is read"),
        ("*.png", "ignored: 1 .png"),
        ("a\0b", "cannot be read"),
    ],
)
def test_errors_name_the_field(tree: Path, path: str, message: str) -> None:
    with pytest.raises(UserError, match=r"^data\.sources\[1\]\.path: ") as caught:
        resolve([source(tree / "b.txt"), source(tree / path)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_excluded_is_an_error(tree: Path) -> None:
    with pytest.raises(UserError, match="files or folders excluded"):
        resolve([source(tree, exclude=["*"])])


def test_the_fingerprint_changes_with_names_and_sizes_only(tree: Path) -> None:
    before = resolve([source(tree)]).fingerprints
    (tree / "b.txt").write_text("B.TXT")
    assert resolve([source(tree)]).fingerprints == before
    (tree / "b.txt").rename(tree / "bb.txt")
    renamed = resolve([source(tree)]).fingerprints
    (tree / "bb.txt").write_text("longer than before")
    assert len({before[0]["sha256"], renamed[0]["sha256"], resolve([source(tree)]).fingerprints[0]["sha256"]}) == 3


def test_files_and_folders_without_permission(tmp_path: Path) -> None:
    """In a process of an ordinary user, since root may read everything."""
    (tmp_path / "open.txt").write_text("a")
    (tmp_path / "shut.txt").write_text("b")
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "c.txt").write_text("c")
    script = f"""
import os
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import resolve
from danlu.errors import UserError
from danlu.recipe.data_sections import Source
os.chdir({str(tmp_path)!r})
list(documents([], Ledger()))
if os.geteuid() == 0:
    os.chmod(".", 0o755)
    os.seteuid(65534)
else:
    os.chmod("shut.txt", 0)
    os.chmod("shut", 0)
listing = resolve([Source(path=".")])
print(sorted(file.path for file in listing.files), listing.unreadable)
ledger = Ledger()
print([document.text for document in documents(listing.files, ledger)], ledger.bad, ledger.examples)
for path in ("shut.txt", "shut"):
    try:
        resolve([Source(path=path)])
    except UserError as error:
        print(error)
"""
    for name in ("shut.txt", "shut"):
        os.chmod(tmp_path / name, 0)
    try:
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    finally:
        os.chmod(tmp_path / "shut", 0o755)
    assert result.stdout.splitlines() == [
        "['./open.txt', './shut.txt'] [('./shut', 'Permission denied')]",
        "['a'] 1 ['./shut.txt: cannot be read: Permission denied']",
        "data.sources[0].path: 'shut.txt': cannot be read: Permission denied",
        "data.sources[0].path: 'shut': cannot be read: Permission denied",
    ]


def test_web_pages_without_the_package_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither left out in silence nor found out about in the middle of the work."""
    (tmp_path / "a.py").write_text("a")
    monkeypatch.setattr("danlu.data.web.installed", lambda: False)
    assert len(resolve([source(str(tmp_path))]).files) == 1
    (tmp_path / "b.html").write_text("<p>b")
    with pytest.raises(UserError, match=r'has 1 file such as .*b\.html.*pip install "danlu\[web\]".*exclude: \["\*\.html"\]'):
        resolve([source(str(tmp_path))])
    assert len(resolve([source(str(tmp_path), exclude=["*.html"])]).files) == 1


def test_code_is_told_by_the_name_under_any_compression(tmp_path: Path) -> None:
    names = ["a.py", "b.PY.gz", "c.py.zst", "d.md", "e.py.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert [file.code for file in resolve([source(tmp_path)]).files] == [True, True, True, False, False]
