from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from danlu.errors import UserError
from danlu.files import aside, locked, sha256, sync, why, write_json, write_text

BUSY = "somebody else is at it; wait"


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Stands in for a full disk: the kernel lets no file of this process grow beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EFBIG, "the file size limit is reached"),
        (errno.EACCES, "Permission denied"),
        (errno.EROFS, "Read-only file system"),
    ],
)
def test_why_a_write_failed(number: int, text: str) -> None:
    assert why(OSError(number, os.strerror(number), "some/file")) == text


def test_why_without_a_number() -> None:
    assert why(OSError("it just failed")) == "it just failed"


def test_a_real_disk_without_room() -> None:
    with pytest.raises(OSError) as caught, open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")
    assert why(caught.value) == "the disk is full"


def test_text_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("炉火纯青 🐉\n", "", "shorter"):
        write_text(path, text)
        assert path.read_bytes() == text.encode("utf-8")
        assert names(tmp_path) == ["a.txt"]


def test_a_reader_sees_the_old_text_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace, seen = tmp_path / "a.txt", os.replace, []
    write_text(path, "old")

    def looked_at(source: Path, target: Path) -> None:
        seen.append((path.read_text(), source.read_text()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", looked_at)
    write_text(path, "new")
    assert seen == [("old", "new")]
    assert path.read_text() == "new"


def test_a_full_disk_leaves_the_old_text_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(OSError) as caught, file_size_limit(10):
        write_text(path, "x" * 1000)
    assert caught.value.errno == errno.EFBIG
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    aside(path).write_text("half of wh")
    assert names(tmp_path) == [".a.txt.partial"]
    write_text(path, "what is meant")
    assert names(tmp_path) == ["a.txt"]
    assert path.read_text() == "what is meant"


def test_text_that_is_no_utf8(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert names(tmp_path) == []


def test_json_is_readable_and_comes_back(tmp_path: Path) -> None:
    value = {"name": "炉火", "losses": [0.1, 1e-300, 3.0], "none": None, "deep": {"a": [1, {"b": True}]}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert '"name": "炉火",\n' in text
    assert text.endswith("}\n")


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert (tmp_path / "a.json").read_text() == "1\n"


def test_the_sum_is_that_of_the_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    assert sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    (tmp_path / "b").touch()
    assert sha256(tmp_path / "b") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_files_and_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    (tmp_path / "a").touch()
    sync(tmp_path / "a")
    sync(tmp_path)
    assert synced == [str(tmp_path / "a"), str(tmp_path)]
    write_text(tmp_path / "b", "x")
    assert synced[2:] == [str(tmp_path / ".b.partial")]
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "absent")


# --- locks ---------------------------------------------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with locked(folder, BUSY):
        assert not folder.exists(), "the lock is beside it, so that it may be renamed into its place"
        with pytest.raises(UserError) as caught, locked(folder, BUSY):
            pytest.fail("two hold it")
        assert str(caught.value) == f"{folder}: {BUSY}"
    with locked(folder, BUSY):
        pass
    assert names(tmp_path / "deep") == [], "nothing is left of it"


def test_another_folder_is_another_matter(tmp_path: Path) -> None:
    with locked(tmp_path / "a", BUSY), locked(tmp_path / "b", BUSY):
        assert names(tmp_path) == ["a.lock", "b.lock"]


def test_the_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a", BUSY):
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with locked(tmp_path / "a", BUSY):
        pass


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    """However it ends: what it leaves is a file that no one holds."""
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        try:
            with locked(tmp_path / "a", BUSY):
                os.write(go, b"x")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"x"
    with pytest.raises(UserError, match="somebody else"), locked(tmp_path / "a", BUSY):
        pytest.fail("two hold it")
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    os.close(ready)
    os.close(go)
    assert names(tmp_path) == ["a.lock"]
    with locked(tmp_path / "a", BUSY):
        pass
    assert names(tmp_path) == []


def test_a_lock_does_not_live_on_in_the_children_of_its_process(tmp_path: Path) -> None:
    """A worker that was forked under the lock, and is still there after its parent was killed, holds nothing."""
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        try:
            with locked(tmp_path / "a", BUSY):
                if not os.fork():
                    os.write(go, os.getpid().to_bytes(4, "big"))
                signal.pause()
        finally:
            os._exit(1)
    worker = int.from_bytes(os.read(ready, 4), "big")
    try:
        with pytest.raises(UserError, match="somebody else"), locked(tmp_path / "a", BUSY):
            pytest.fail("two hold it")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.kill(worker, 0)
        with locked(tmp_path / "a", BUSY):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(ready)
        os.close(go)


def test_a_child_leaves_its_parent_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "a", BUSY):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(UserError, match="somebody else"), locked(tmp_path / "a", BUSY):
            pytest.fail("two hold it")


def test_a_lock_on_a_removed_file_guards_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder before ends, and removes the file, between our opening and our locking it; a third makes it anew."""
    lock = fcntl.flock

    def flock(handle: int, how: int) -> None:
        os.unlink(tmp_path / "a.lock")
        (tmp_path / "a.lock").touch()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="somebody else"), locked(tmp_path / "a", BUSY):
        pytest.fail("it holds a file that nobody else sees")
    assert names(tmp_path) == ["a.lock"], "the third one's"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = r"a\.lock: cannot be locked: No locks available; this file system may lack locks"
    with pytest.raises(UserError, match=said), locked(tmp_path / "a", BUSY):
        pytest.fail("it is not locked")


def test_a_lock_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = r"file/run: cannot be written: (Not a directory|File exists)"
    with pytest.raises(UserError, match=said), locked(tmp_path / "file" / "run", BUSY):
        pytest.fail("it is not locked")


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with locked(tmp_path / "a", BUSY), pytest.raises(UserError), locked(tmp_path / "a", BUSY):
            pass
        sync(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
