"""`danlu train` from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class Training:
    """A `danlu train` process in a session of its own, as a terminal or a scheduler starts it, and what it prints."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        # One thread: a model this small computes faster so, above all beside other processes.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "danlu", "train", str(folder), *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.printed: list[str] = []

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            yield line

    def wait_for(self, pattern: str) -> str:
        """Read on until a line begins with the pattern; return it."""
        for line in self.lines():
            if re.match(pattern, line):
                return line
        pytest.fail(f"{pattern!r} was not printed:\n{''.join(self.printed)}")

    def end(self) -> tuple[int, str]:
        """Exit code and all that was printed."""
        for _ in self.lines():
            pass
        return self.process.wait(60), "".join(self.printed)
