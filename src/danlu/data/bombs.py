"""Compressed files that swell beyond reason."""

from __future__ import annotations

import io
from typing import Any

RATIO = 250
"""Times its compressed size that a file may come to; text comes to 3 to 20 times, a log of equal lines to 200."""
ALWAYS = 256 << 20
"""Bytes that any file may come to."""


class Measured(io.RawIOBase):
    """What `inner` decompresses from `raw`, as long as the two are in proportion.

    Raises:
        OSError: on the read behind the limit.
    """

    def __init__(self, inner: Any, raw: io.BufferedReader) -> None:
        self._inner, self._raw, self._bytes = inner, raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read1(len(buffer))
        self._bytes += len(data)
        if self._bytes > ALWAYS and self._bytes > RATIO * max(1, self._raw.tell()):
            raise OSError(f"it decompresses to more than {RATIO} times its size, as bombs do; what came before is kept")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()
