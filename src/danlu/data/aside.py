"""A folder that is complete or absent: built beside its place, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import DanluError
from danlu.files import sync, why


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
            sync(path)
        os.replace(partial, folder)
        sync(folder.parent)
    except OSError as error:
        reason = f"cannot be written: {why(error)}; nothing was left there; make room and start it again"
        raise DanluError(f"{folder}: {reason}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
