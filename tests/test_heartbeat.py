"""How a rank of several leaves: its own clearing up is done, the interpreter's is not begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDING = """
import atexit, sys
from pathlib import Path
from danlu import cli, heartbeat

class Late:
    def __del__(self):
        print("taken down")

late = Late()
atexit.register(print, "cleared up")
if len(sys.argv) > 3:
    heartbeat.start(Path(sys.argv[1]), 1, list)
sys.argv[1:] = [sys.argv[2]]
cli.main()
"""


@pytest.mark.parametrize(("verb", "code"), [("--version", 0), ("no-such-verb", 2)])
def test_a_rank_leaves_with_its_code_and_without_taking_the_interpreter_down(verb: str, code: int, tmp_path: Path) -> None:
    alone, rank = (
        subprocess.run(
            [sys.executable, "-c", ENDING, str(tmp_path / "logs"), verb, *more], capture_output=True, text=True, check=False
        )
        for more in ((), ("rank",))
    )
    assert alone.returncode == rank.returncode == code
    assert alone.stdout.endswith("cleared up\ntaken down\n")
    assert rank.stdout + "taken down\n" == alone.stdout
    assert rank.stderr == alone.stderr
