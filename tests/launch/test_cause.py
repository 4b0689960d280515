"""Which of several errors is the one that ended the run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from danlu.errors import DanluError, Interrupted, UserError
from danlu.launch import cause

GLOO = "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


def fail(logs: Path, rank: int, error: Exception) -> None:
    with pytest.raises(type(error)), cause.told(logs, rank):
        raise error


def test_a_lost_connection_is_a_consequence(tmp_path: Path) -> None:
    """Though it was there first: the one that failed may take longer to say so."""
    fail(tmp_path, 0, RuntimeError(GLOO))
    fail(tmp_path, 3, RuntimeError("NCCL error: remote process exited or there was a network error"))
    fail(tmp_path, 2, ZeroDivisionError("division by zero"))
    first = cause.found(tmp_path)[0]
    assert (first.rank, first.consequence) == (2, False)
    assert "rank 2 failed (ZeroDivisionError: division by zero)" in first.message
    assert first.traceback.startswith("Traceback") and "raise error" in first.traceback
    assert [each.consequence for each in cause.found(tmp_path)] == [False, True, True]


def test_the_earliest_counts(tmp_path: Path) -> None:
    fail(tmp_path, 1, UserError("the first"))
    fail(tmp_path, 0, ValueError("the second"))
    first = cause.found(tmp_path)[0]
    assert (first.message, first.exit_code, first.traceback) == ("the first", 2, "")
    assert isinstance(first.error, DanluError) and first.error.exit_code == 2


def test_only_the_first_error_of_a_rank_is_kept(tmp_path: Path) -> None:
    fail(tmp_path, 0, ValueError("why"))
    fail(tmp_path, 0, ValueError("what came of it"))
    assert "why" in cause.found(tmp_path)[0].message


def test_ranks_that_end_alike_wait_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the launcher ends all when one ends with an error, and the first one has a report to write."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            cause.leave(tmp_path, cause.Cause(0, "stopped", Interrupted.exit_code, time.time_ns()))

    monkeypatch.setattr(time, "sleep", sleep)
    fail(tmp_path, 1, Interrupted("stopped"))
    assert len(waited) == 3
    fail(tmp_path, 2, UserError("not agreed on"))
    assert len(waited) == 3


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "error-1.json").write_text('{"rank": 1')
    assert cause.found(tmp_path) == []
