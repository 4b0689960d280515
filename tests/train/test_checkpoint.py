from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from danlu.engines.base import Engine, Snapshot
from danlu.errors import RunStopped, UserError
from danlu.train import checkpoint
from danlu.train.checkpoint import MANIFEST, STATE, latest
from danlu.train.saver import Saver

Damage = Callable[[Path], None]


Write = Callable[[Path], list[Path]]


class Writer:
    """As much of an engine as writes a checkpoint."""

    rank = 0

    def __init__(self, write: Write) -> None:
        self.write = write

    def agree(self, flag: bool) -> bool:
        return flag

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def snapshot(self, copy: bool) -> Snapshot:
        return Snapshot({}, self.write)


def save(folder: Path, step: int, write: Write, keep: int | None, said: str = "") -> None:
    saver = Saver(cast(Engine, Writer(write)), folder)
    saver.begin(step, {"said": said or f"after {step}"}, keep, background=False)
    saver.finish(wait=True)


def writer(text: str) -> Write:
    def write(folder: Path) -> list[Path]:
        (folder / "weights.bin").write_text(text * 100)
        (folder / "optimizer.bin").write_bytes(bytes(range(256)))
        return [folder / "weights.bin", folder / "optimizer.bin"]

    return write


def silent(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder with good checkpoints after steps 5, 10 and 15."""
    folder = tmp_path / "checkpoints"
    for step in (5, 10, 15):
        save(folder, step, writer(f"after {step}"), keep=3)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(three: Path) -> None:
    found = latest(three, silent)
    assert found is not None
    assert (found.step, found.path) == (15, three / "step-00000015")
    assert found.state == {"step": 15, "said": "after 15", "engine": {}}
    assert (found.path / "weights.bin").read_text() == "after 15" * 100
    assert names(found.path) == [MANIFEST, "optimizer.bin", STATE, "weights.bin"]
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015"]


def test_steps_beyond_eight_digits_are_found_and_ordered(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step, writer("x"), keep=2)
    found = latest(tmp_path, silent)
    assert found is not None
    assert found.step == 100_000_000


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert latest(tmp_path / "absent", silent, repair=True) is None
    assert latest(tmp_path, silent, repair=True) is None


def test_only_the_newest_are_kept(three: Path) -> None:
    save(three, 20, writer("after 20"), keep=2)
    assert names(three) == ["step-00000015", "step-00000020"]
    save(three, 25, writer("after 25"), keep=1)
    assert names(three) == ["step-00000025"]


def test_an_old_one_goes_only_when_the_new_one_is_there(three: Path) -> None:
    def write(folder: Path) -> list[Path]:
        assert names(three) == ["step-00000005", "step-00000010", "step-00000015", "step-00000020.partial"]
        return writer("x")(folder)

    save(three, 20, write, keep=1)
    assert names(three) == ["step-00000020"]


def flip(name: str, at: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray((path / name).read_bytes())
        content[at] ^= 1
        (path / name).write_bytes(content)

    return damage


def truncate(name: str) -> Damage:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - 1)


def empty(name: str) -> Damage:
    return lambda path: os.truncate(path / name, 0)


def delete(name: str) -> Damage:
    return lambda path: (path / name).unlink()


def manifest(content: str) -> Damage:
    return lambda path: (path / MANIFEST).write_text(content) and None


DAMAGES = {
    "a flipped bit": (flip("weights.bin", 123), "weights.bin was altered since it was written"),
    "a flipped last bit": (flip("optimizer.bin", -1), "optimizer.bin was altered since it was written"),
    "a flipped bit of the state": (flip(STATE, 3), "state.json was altered since it was written"),
    "cut off": (truncate("weights.bin"), "weights.bin has 799 bytes, 800 were written"),
    "empty": (empty("optimizer.bin"), "optimizer.bin has 0 bytes, 256 were written"),
    "longer": (lambda path: (path / "weights.bin").open("ab").write(b"1") and None, "weights.bin has 801 bytes"),
    "a file deleted": (delete("weights.bin"), "weights.bin: No such file or directory"),
    "the state deleted": (delete(STATE), "state.json: No such file or directory"),
    "an empty manifest": (empty(MANIFEST), "manifest.json cannot be read"),
    "a manifest of nothing": (manifest('{"files": {}}'), "manifest.json does not list state.json"),
    "a manifest that is a list": (manifest("[]"), "manifest.json cannot be read"),
    "a manifest of a list": (manifest('{"files": ["state.json"]}'), "manifest.json cannot be read"),
    "a manifest of numbers": (manifest('{"files": {"state.json": 1}}'), "manifest.json cannot be read"),
    "a manifest that is no text": (lambda path: (path / MANIFEST).write_bytes(b"\xff\xfe") and None, "manifest.json cannot be"),
}


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_one_is_passed_over_and_named(three: Path, name: str, repair: bool) -> None:
    damage, said = DAMAGES[name]
    damage(three / "step-00000015")
    lines: list[str] = []
    found = latest(three, lines.append, repair)
    assert found is not None
    assert (found.step, found.state["said"]) == (10, "after 10")
    assert len(lines) == 1
    assert f"{three / 'step-00000015'} is damaged ({said}" in lines[0]
    assert "\n" not in lines[0]
    assert {name for name in names(three) if "15" in name} == {"step-00000015.damaged" if repair else "step-00000015"}


def test_two_damaged_ones(three: Path) -> None:
    truncate("weights.bin")(three / "step-00000015")
    delete("weights.bin")(three / "step-00000010")
    lines: list[str] = []
    found = latest(three, lines.append)
    assert found is not None
    assert found.step == 5
    assert [line.split(" is damaged")[0] for line in lines] == [str(three / "step-00000015"), str(three / "step-00000010")]


def test_every_flipped_bit_of_the_manifest_is_noticed_or_harmless(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, writer(str(step)), keep=2)
    good = (tmp_path / "step-00000002" / MANIFEST).read_bytes()
    noticed = 0
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= 1 << (at % 7)
        (tmp_path / "step-00000002" / MANIFEST).write_bytes(changed)
        found = latest(tmp_path, lambda _line: None)
        assert found is not None
        noticed += found.step == 1
        assert found.state["said"] == f"after {found.step}"
    assert noticed > len(good) / 2  # the rest is white space and the like


def test_repeated_calls_without_repair_change_nothing(three: Path) -> None:
    truncate("weights.bin")(three / "step-00000015")
    (three / "step-00000020.partial").mkdir()
    for _ in range(2):
        latest(three, lambda _line: None)
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015", "step-00000020.partial"]


def test_a_damaged_one_does_not_count_as_kept(three: Path) -> None:
    truncate("weights.bin")(three / "step-00000015")
    latest(three, lambda _line: None, repair=True)
    save(three, 12, writer("after 12"), keep=2)
    assert names(three) == ["step-00000010", "step-00000012", "step-00000015.damaged"]
    save(three, 15, writer("after 15 again"), keep=2, said="after 15 again")
    found = latest(three, silent)
    assert found is not None
    assert found.state["said"] == "after 15 again"


def test_none_goes_where_none_is_to_go(three: Path) -> None:
    for step in (20, 25):
        save(three, step, writer(f"after {step}"), keep=None)
    assert [name[-2:] for name in names(three)] == ["05", "10", "15", "20", "25"]
    save(three, 30, writer("after 30"), keep=2)
    assert [name[-2:] for name in names(three)] == ["25", "30"]


@pytest.mark.parametrize("repair", [False, True])
def test_all_damaged_is_an_error_every_time(three: Path, repair: bool) -> None:
    """A second try must not take the run for a new one."""
    for path in three.iterdir():
        truncate("weights.bin")(path)
    for _ in range(2):
        lines: list[str] = []
        with pytest.raises(UserError, match="all 3 checkpoints are damaged; bring a good one back, or delete"):
            latest(three, lines.append, repair)
        assert ["looking at the one before it" in line for line in lines] == [True, True, False]
        assert lines[-1].endswith("; there is none before it")
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015"]


def test_the_only_one_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1, writer("x"), keep=1)
    truncate("weights.bin")(tmp_path / "step-00000001")
    with pytest.raises(UserError, match="the only checkpoint is damaged"):
        latest(tmp_path, lambda _line: None, repair=True)


def test_leftovers_of_a_killed_process_are_ignored_and_cleaned(three: Path) -> None:
    shutil.copytree(three / "step-00000015", three / "step-00000020.partial")  # killed just before the rename
    (three / "step-00000025").mkdir()  # killed while it was deleted
    (three / "step-00000025" / "weights.bin").write_text("x")
    (three / "notes.txt").write_text("a person's own")
    found = latest(three, silent)
    assert found is not None
    assert found.step == 15
    found = latest(three, silent, repair=True)
    assert found is not None
    assert found.step == 15
    assert names(three) == ["notes.txt", "step-00000005", "step-00000010", "step-00000015"]


def test_a_leftover_of_the_same_step_is_no_hindrance(three: Path) -> None:
    (three / "step-00000020.partial").mkdir()
    (three / "step-00000020.partial" / "junk").write_text("x")
    (three / "step-00000020").mkdir()
    (three / "step-00000020" / "weights.bin").write_text("half deleted")
    save(three, 20, writer("after 20"), keep=3)
    found = latest(three, silent)
    assert found is not None
    assert found.state["said"] == "after 20"
    assert names(found.path) == [MANIFEST, "optimizer.bin", STATE, "weights.bin"]


def killed(work: Callable[[], object]) -> None:
    """Do it in a child process, which is expected to die of SIGKILL."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("moment", ["write", "sync", "rename"])
def test_complete_or_absent_at_every_moment_of_a_kill(three: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(folder: Path) -> list[Path]:
        files = writer("after 20")(folder)
        if moment == "write":
            die()
        return files

    def rename(old: Path, new: Path) -> None:
        if new.name == "step-00000020":
            die()
        replace(old, new)

    if moment == "sync":
        monkeypatch.setattr(checkpoint, "sync", lambda _path: die())
    if moment == "rename":
        monkeypatch.setattr(os, "replace", rename)
    killed(lambda: save(three, 20, write, keep=1))
    monkeypatch.undo()
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015", "step-00000020.partial"]
    assert (three / "step-00000020.partial" / MANIFEST).exists() == (moment == "rename")
    found = latest(three, silent, repair=True)
    assert found is not None
    assert found.step == 15
    assert len(names(three)) == 3


def test_a_kill_while_an_old_one_is_deleted(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it is never taken for a checkpoint, even when no newer one is good."""
    remove = shutil.rmtree

    def rmtree(path: Path, ignore_errors: bool) -> None:
        if path.name == "step-00000010":
            os.kill(os.getpid(), signal.SIGKILL)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    killed(lambda: save(three, 20, writer("after 20"), keep=2))
    monkeypatch.undo()
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015", "step-00000020"]
    for step in (15, 20):
        truncate("weights.bin")(three / f"step-{step:08d}")
    found = latest(three, lambda _line: None, repair=True)
    assert found is not None
    assert found.step == 5
    assert names(three) == ["step-00000005", "step-00000015.damaged", "step-00000020.damaged"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses to let a file of this process grow beyond it, as it refuses on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 500])
def test_a_disk_that_fills_up_while_saving(three: Path, size: int) -> None:
    with pytest.raises(RunStopped) as caught, file_size_limit(size):
        save(three, 20, writer("after 20"), keep=1)
    assert str(caught.value) == (
        f"{three / 'step-00000020'}: the checkpoint could not be written: the file size limit is reached; the last good one is "
        f"{three / 'step-00000015'}; make room and run the same command to go on"
    )
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015"]
    found = latest(three, silent)
    assert found is not None
    assert found.state["said"] == "after 15"
    save(three, 20, writer("after 20"), keep=1)
    assert names(three) == ["step-00000020"]


def test_a_disk_without_room(tmp_path: Path) -> None:
    def write(_folder: Path) -> list[Path]:
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 100_000)
        return []

    with pytest.raises(RunStopped, match=r"could not be written: the disk is full; there is none before it; make room"):
        save(tmp_path / "checkpoints", 1, write, keep=1)
    assert names(tmp_path / "checkpoints") == []


def test_a_full_disk_in_the_middle_of_safetensors(three: Path) -> None:
    import torch

    from danlu.engines.torch.safetensors_file import write_file

    def write(folder: Path) -> list[Path]:
        write_file({"a": torch.zeros(1000)}, folder / "a.safetensors")
        return []

    with pytest.raises(RunStopped, match="the file size limit is reached; the last good one is"), file_size_limit(500):
        save(three, 20, write, keep=1)
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(RunStopped, match="the checkpoint could not be written: Not a directory; there is none before it"):
        save(tmp_path / "checkpoints", 1, writer("x"), keep=1)


def test_everything_is_on_the_disk_before_the_rename(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the rename must find the files whole: each is synced, then their folder, then the one above."""
    order: list[str] = []
    sync, replace = checkpoint.sync, os.replace

    def synced(path: Path) -> None:
        order.append(f"sync {path.name}")
        sync(path)

    def replaced(old: Path, new: Path) -> None:
        order.append(f"rename {new.name}")
        replace(old, new)

    monkeypatch.setattr(checkpoint, "sync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    save(three, 20, writer("x"), keep=3)
    at = order.index("rename step-00000020")
    assert {"sync weights.bin", "sync optimizer.bin", "sync state.json", "sync step-00000020.partial"} <= set(order[:at])
    assert order[at + 1 :] == ["sync checkpoints"]


def test_the_manifest_has_the_sums_that_other_programs_compute(three: Path) -> None:
    import hashlib

    files = json.loads((three / "step-00000015" / MANIFEST).read_text())["files"]
    assert files.keys() == {"weights.bin", "optimizer.bin", STATE}
    for name, written in files.items():
        content = (three / "step-00000015" / name).read_bytes()
        assert written == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_other_errors_are_not_taken_for_a_full_disk(three: Path) -> None:
    def write(_folder: Path) -> list[Path]:
        raise ValueError("a mistake in the program")

    with pytest.raises(ValueError, match="a mistake"):
        save(three, 20, write, keep=1)
    assert names(three) == ["step-00000005", "step-00000010", "step-00000015"]
