"""Files that are complete or absent, and folders that one process at a time may write."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from danlu.errors import UserError
from danlu.pace import CHUNK_BYTES, chunks

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
}

PLACES, PLACE_BYTES = 1024, 4096

_held: set[int] = set()
"""Handles of the locks of this process."""


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


# A lock lives as long as any process that inherited it: without this, a loader's worker, which outlives a killed training
# process by some seconds, would keep the next one out.
os.register_at_fork(after_in_child=_let_go)


def why(error: OSError) -> str:
    """The reason of a failed write in a few words."""
    return _FULL.get(error.errno or 0, error.strerror or str(error))


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def aside(path: Path) -> Path:
    """Where ``write_text`` writes before it renames; a killed process may leave it."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Replace a file by one rename, so that a reader sees the old or the new text and a crash leaves one of them."""
    partial = aside(path)
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """``write_text`` of a value as readable JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal, at this thread's pace."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        for _ in chunks(path.stat().st_size + 1):  # one more, for the end
            digest.update(buffer[: file.readinto(buffer) or 0])
    return digest.hexdigest()


def sampled_sha256(paths: Iterable[Path]) -> str:
    """SHA-256 of the names, the sizes and a thousand places of each of some files: quick, and no two trainings have the same.

    UserError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{path.name} {size} ".encode())
                for place in range(PLACES):
                    file.seek(size * place // PLACES)
                    digest.update(file.read(PLACE_BYTES))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {why(error)}") from None
    return digest.hexdigest()


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Hold the right to write a folder; the lock goes with the process, however it ends.

    UserError: another process holds it (``busy`` says what to do then), or the place cannot be written.
    """
    path = folder.with_name(folder.name + ".lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {why(error)}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file between the two calls above; then this lock guards nothing.
            mine = os.fstat(handle).st_ino == os.stat(path).st_ino
        except (BlockingIOError, FileNotFoundError):
            mine = False
        except OSError as error:
            raise UserError(f"{path}: cannot be locked: {why(error)}; this file system may lack locks, use another") from None
        if not mine:
            raise UserError(f"{folder}: {busy}")
        _held.add(handle)
        try:
            yield
        finally:
            _held.discard(handle)
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
