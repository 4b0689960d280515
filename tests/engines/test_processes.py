"""Ranks that are started without a framework: their output, their failures and their end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from danlu.engines import processes
from danlu.environment import Nodes
from danlu.errors import DanluError
from danlu.launch import cause

SCRIPT = "danlu.py"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ranks run a script in the place of danlu; its folder is the run's."""
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, str(tmp_path / SCRIPT)])
    (tmp_path / "logs").mkdir()
    (tmp_path / "place").mkdir()
    return tmp_path


def launch(folder: Path, code: str, ranks: int = 3) -> None:
    (folder / SCRIPT).write_text("import json, os, sys, time, signal, pathlib\n" + code)
    processes.launch(ranks, folder, folder / "logs", folder / "place", range(ranks), Nodes())


def test_every_rank_is_told_who_it_is(started: Path) -> None:
    keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    launch(started, f"pathlib.Path(sys.argv[2], os.environ['RANK']).write_text(json.dumps([os.environ[k] for k in {keys}]))")
    told = [json.loads((started / str(rank)).read_text()) for rank in range(3)]
    assert [each[:4] for each in told] == [[str(rank), str(rank), "3", "127.0.0.1"] for rank in range(3)]
    assert len({each[4] for each in told}) == 1 and int(told[0][4]) > 0


def test_a_rank_that_ends_without_a_word_is_named_and_the_others_stopped(
    started: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DanluError, match="rank 1 ended with exit code 7 and no error, and the others were stopped"):
        launch(started, "print('oh no', file=sys.stderr); sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(100)")
    assert "oh no" in capsys.readouterr().err


def test_a_rank_that_was_killed(started: Path) -> None:
    with pytest.raises(DanluError, match=r"rank 2 was ended by signal 9 \(as the kernel does when memory runs out\)"):
        launch(started, "os.kill(os.getpid(), 9) if os.environ['RANK'] == '2' else time.sleep(100)")


def test_the_error_of_a_rank_is_raised_as_it_was(started: Path) -> None:
    cause.leave(started / "logs", cause.Cause(0, "train.steps: no", 2, 5))
    with pytest.raises(DanluError, match=r"^train\.steps: no$") as raised:
        launch(started, "sys.exit(2)", ranks=1)
    assert raised.value.exit_code == 2


def test_a_command_once_more_says_what_the_failed_rank_said(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["danlu", "evaluate"])
    (started / SCRIPT).write_text(
        "import os, sys\nif os.environ['RANK'] == '1':\n    print('danlu: no such file', file=sys.stderr); sys.exit(2)\n"
    )
    with pytest.raises(DanluError, match=r"^no such file$") as raised:
        processes.again(2)
    assert raised.value.exit_code == 2
