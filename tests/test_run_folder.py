from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import DanluError, UserError
from danlu.files import aside, locked
from danlu.recipe import Recipe, dump, load, parse
from danlu.run_folder import RunFolder

TREE: dict[str, Any] = {
    "name": "first",
    "model": {"preset": "llama-5m"},
    "data": {"sources": [{"path": "corpus/*.txt"}]},
    "train": {"steps": 100},
}


def recipe(*overrides: str) -> Recipe:
    return parse(TREE, overrides)


def refusal(given: Recipe, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        RunFolder.create(given, path)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_has_its_recipe(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "runs" / "first")
    assert names(tmp_path / "runs") == ["first"]
    assert names(run.path) == ["recipe.yaml"]
    assert run.load_recipe() == recipe()
    assert load(run.recipe_file) == recipe()
    assert (run.data, run.checkpoints, run.export) == tuple(run.path / name for name in ("data", "checkpoints", "export"))
    assert run.metrics == run.path / "metrics.sqlite"


def test_an_empty_folder_becomes_a_run(tmp_path: Path) -> None:
    assert RunFolder.create(recipe(), tmp_path).load_recipe() == recipe()


def test_the_same_recipe_again(tmp_path: Path) -> None:
    RunFolder.create(recipe(), tmp_path / "first")
    (tmp_path / "first" / "data").mkdir()
    assert RunFolder.create(recipe(), tmp_path / "first").load_recipe() == recipe()
    assert names(tmp_path / "first") == ["data", "recipe.yaml"]
    assert RunFolder.open(tmp_path / "first").load_recipe() == recipe()


def test_a_folder_that_was_moved(tmp_path: Path) -> None:
    RunFolder.create(recipe(), tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    assert RunFolder.create(recipe(), tmp_path / "elsewhere").path == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "override",
    [
        "checkpoint.every=7",
        "checkpoint.keep=1",
        "watch.print_every=3",
        "data.workers=4",
        "train.evaluate_every=9",
        "stages=[train]",
    ],
)
def test_what_does_not_change_the_training_may_change(tmp_path: Path, override: str) -> None:
    RunFolder.create(recipe(), tmp_path / "first")
    run = RunFolder.create(recipe(override), tmp_path / "first")
    assert run.load_recipe() == recipe(override) != recipe()


def test_another_recipe_is_refused_and_the_fields_named(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    run.data.mkdir()
    before = run.recipe_file.read_bytes()
    assert refusal(recipe("train.seed=3", "checkpoint.every=7"), run.path) == (
        f"{run.path} holds the run of another recipe (train.seed was 0, is now 3); "
        "give this one another name (name=first-2) or delete the folder"
    )
    assert run.recipe_file.read_bytes() == before


def test_a_run_in_which_nothing_was_done_takes_a_mended_recipe(tmp_path: Path) -> None:
    """The first preparation found an empty corpus, say; there is nothing that another recipe could spoil."""
    RunFolder.create(recipe(), tmp_path / "first")
    assert RunFolder.create(recipe("train.seed=3"), tmp_path / "first").load_recipe().train.seed == 3


def test_three_fields_are_named_and_the_others_counted(tmp_path: Path) -> None:
    RunFolder.create(recipe(), tmp_path / "first").data.mkdir()
    other = recipe("train.global_batch=4", "train.seed=3", "data.sequence_length=64", "train.optimizer.learning_rate=1.0")
    text = refusal(other, tmp_path / "first")
    assert text.count(", is now ") == 3
    assert "data.sequence_length was 512, is now 64; " in text
    assert " and 1 more)" in text
    assert "delete the folder" in text


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert refusal(recipe(), tmp_path) == (
        f"{tmp_path} is not empty and holds no recipe.yaml; give the run another name or clear the folder"
    )
    assert names(tmp_path) == ["thesis.tex"]


def test_a_killed_beginning_is_no_hindrance(tmp_path: Path) -> None:
    """Killed between the making of the folder and the rename of its recipe."""
    aside(tmp_path / "recipe.yaml").write_text("name: fir")
    assert RunFolder.create(recipe(), tmp_path).load_recipe() == recipe()
    assert names(tmp_path) == ["recipe.yaml"]


def test_a_recipe_that_was_damaged(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    run.data.mkdir()
    run.recipe_file.write_text("name: first\nmodle: 3\n")
    text = refusal(recipe(), run.path)
    assert str(run.recipe_file) in text
    assert "modle" in text


def test_a_run_that_another_process_works_on(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    run.data.mkdir()
    before = run.recipe_file.read_bytes()
    with locked(run.path, "not asked here"):
        text = refusal(recipe("checkpoint.every=7"), run.path)
    assert text == f"{run.path}: another danlu process works on this run; wait for it, or give this one another name"
    assert run.recipe_file.read_bytes() == before, "what the other one works by is not changed under its hands"
    assert "every: 7" in RunFolder.create(recipe("checkpoint.every=7"), run.path).recipe_file.read_text()


# --- places that cannot be written or read -----------------------------------------------------------------------------------


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Path]:
    """A folder in which this process, which is no longer root, may not write, nor see what is in its ``hidden`` one."""
    folder = tmp_path / "others"
    (folder / "hidden").mkdir(parents=True)
    (folder / "hidden").chmod(0o700)
    folder.chmod(0o755)
    if os.geteuid():
        folder.chmod(0o555)
        (folder / "hidden").chmod(0o000)
        yield folder
        folder.chmod(0o755)
        (folder / "hidden").chmod(0o700)
        return
    above = [parent for parent in tmp_path.parents if parent.stat().st_mode & 0o005 != 0o005]
    modes = {parent: parent.stat().st_mode for parent in [tmp_path, *above]}
    for parent in modes:
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
        for parent, mode in modes.items():
            parent.chmod(mode)


def test_a_place_that_belongs_to_others(nobody: Path) -> None:
    assert refusal(recipe(), nobody / "first") == f"{nobody / 'first'}: cannot be written: Permission denied"
    assert names(nobody) == ["hidden"]
    hidden = nobody / "hidden" / "first"
    assert refusal(recipe(), hidden) == f"{hidden}: cannot be written: Permission denied"
    with pytest.raises(UserError, match="first: cannot be read: Permission denied"):
        RunFolder.open(hidden)
    with pytest.raises(UserError, match=r"summary\.json: cannot be read: Permission denied"):
        RunFolder(hidden).read("summary.json")


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert refusal(recipe(), tmp_path / "file") == f"{tmp_path / 'file'}: cannot be written: File exists"
    assert "file/first: cannot be written: " in refusal(recipe(), tmp_path / "file" / "first")
    assert names(tmp_path) == ["file"]


def test_a_full_disk_at_the_beginning(tmp_path: Path) -> None:
    """What it leaves must not keep the next attempt from starting."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        text = refusal(recipe(), tmp_path / "first")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert text == f"{tmp_path / 'first'}: cannot be written: the file size limit is reached"
    assert RunFolder.create(recipe(), tmp_path / "first").load_recipe() == recipe()


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.touch()])
def test_opening_what_is_no_run(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "first")
    with pytest.raises(UserError) as caught:
        RunFolder.open(tmp_path / "first")
    assert str(caught.value) == (
        f"{tmp_path / 'first'}: not a run folder (no recipe.yaml in it); give the folder that `danlu run` or `danlu train` wrote"
    )


# --- its JSON files ----------------------------------------------------------------------------------------------------------


def test_json_files_come_back(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    assert run.read("summary.json") is None
    for value in ({"steps": 3, "text": "炉火"}, [1, None], {}):
        run.write("summary.json", value)
        assert run.read("summary.json") == value


@pytest.mark.parametrize("content", [b"", b'{"steps": ', b"\xff\xfe\x00"])
def test_a_damaged_json_file(tmp_path: Path, content: bytes) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    (run.path / "summary.json").write_bytes(content)
    with pytest.raises(UserError, match=r"summary\.json: damaged JSON \(.*\); delete it") as caught:
        run.read("summary.json")
    assert len(str(caught.value).splitlines()) == 1


def test_a_json_file_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    run.write("summary.json", {"steps": 3})

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DanluError) as caught:
        run.write("summary.json", {"steps": 4})
    assert str(caught.value) == f"{run.path / 'summary.json'}: cannot be written: the disk is full"
    assert run.read("summary.json") == {"steps": 3}


def test_the_recipe_in_the_folder_is_the_resolved_one(tmp_path: Path) -> None:
    run = RunFolder.create(recipe(), tmp_path / "first")
    assert run.recipe_file.read_text(encoding="utf-8") == dump(recipe())
    assert "sequence_length: 512" in run.recipe_file.read_text(encoding="utf-8"), "defaults are spelled out"
