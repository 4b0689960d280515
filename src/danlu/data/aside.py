"""A folder that is complete or absent: built beside its place under a lock, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import DanluError, UserError

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the right to build `folder`; the lock goes with the process, however it ends.

    Raises:
        UserError: another process holds it.
    """
    path = folder.with_name(folder.name + ".lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file between the two calls above; then this lock guards nothing.
            mine = os.fstat(handle).st_ino == os.stat(path).st_ino
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise UserError(f"{folder}: another process is preparing this folder; wait for it, or choose another folder")
        try:
            yield
        finally:
            os.unlink(path)
    finally:
        os.close(handle)


@contextmanager
def building(folder: Path, report: Callable[[str], None]) -> Iterator[Path]:
    """Give `<folder>.partial` to write into; it becomes `folder`, with everything on disk, when the block ends well.

    What a killed process left there is removed first. When the block fails, it is removed too.

    Raises:
        DanluError: the disk is full, or writing fails in another way.
    """
    partial = folder.with_name(folder.name + ".partial")
    try:
        if partial.exists():
            report(f"{partial}: left by a preparation that was cut off; removed, starting over")
            shutil.rmtree(partial)
        partial.mkdir()
        yield partial
        for path in [*partial.iterdir(), partial]:
            _sync(path)
        os.replace(partial, folder)
        _sync(folder.parent)
    except OSError as error:
        why = _FULL.get(error.errno or 0, error.strerror or str(error))
        raise DanluError(f"{folder}: cannot be written: {why}; nothing was left there; make room and start it again") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
