"""The watchdog beside small processes that give signs of life as ranks do: when it acts, whom it blames, whom it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from danlu import heartbeat
from danlu.launch import cause, watchdog
from danlu.launch.cause import Cause
from danlu.launch.watchdog import REPORT, watching

PRELUDE = """
import sys, time, pathlib, signal
from danlu import heartbeat
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def all_reduce(): time.sleep(1000)
heartbeat.start(pathlib.Path(sys.argv[1]), int(sys.argv[2]), lambda: FLIGHT)
heartbeat.doing("trains")
"""
SLEEPS = "def loads(): time.sleep(1000)\nloads()"
WAITS = "all_reduce()"
TICKS = "while True: time.sleep(0.1); heartbeat.tick()"
SECONDS = 1.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "POLL_SECONDS", 0.1)


Rank = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """Start a rank that does something; it has given its first sign when this returns."""
    started: list[subprocess.Popen[bytes]] = []

    def start(number: int, does: str, flight: str = "[]") -> subprocess.Popen[bytes]:
        code = PRELUDE.replace("FLIGHT", flight) + does
        started.append(subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)]))
        while number not in {beat.rank for beat in heartbeat.read(tmp_path) if beat.doing != "starts"}:
            assert started[-1].poll() is None
            time.sleep(0.02)
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(20)


def test_a_hang_names_who_holds_up_whom(rank: Rank, tmp_path: Path) -> None:
    """The one that is in no collective is at fault; all are ended, though they do not hear SIGTERM."""
    with watching(tmp_path, range(2), SECONDS):
        stuck, waiting = rank(0, SLEEPS), rank(1, "time.sleep(1000)", flight="['all_reduce of group data']")
        assert ended(stuck) == ended(waiting) == -signal.SIGKILL
    (found,) = cause.found(tmp_path)
    assert "rank 0 is in no collective, but at loads (<string>:" in found.message and "(trains)" in found.message
    assert "the others wait for it: rank 1 in all_reduce of group data" in found.message
    report = (tmp_path / REPORT).read_text("utf-8")
    assert report.index("rank 0 (") < report.index("in loads") < report.index("rank 1 (")


def test_a_rank_that_runs_no_python(rank: Rank, tmp_path: Path) -> None:
    """It cannot answer by itself, and still its stack is known."""
    with watching(tmp_path, range(1), SECONDS):
        stuck = rank(0, "def computes(number): return 3**number\ncomputes(10**9)")
        ended(stuck)
    assert "at computes (<string>" in cause.found(tmp_path)[0].message


def test_all_wait_for_each_other(rank: Rank, tmp_path: Path) -> None:
    with watching(tmp_path, range(2), SECONDS):
        ranks = [rank(0, SLEEPS, "['all_reduce']"), rank(1, SLEEPS, "['all_gather']")]
        assert [ended(each) for each in ranks] == [-9, -9]
    assert "every rank waits" in cause.found(tmp_path)[0].message


def test_what_gets_on_is_left_alone(rank: Rank, tmp_path: Path) -> None:
    """One rank that ticks is enough, as when the first one writes a checkpoint and the others wait for it."""
    with watching(tmp_path, range(2), SECONDS):
        both = rank(0, TICKS), rank(1, WAITS)
        time.sleep(2 * SECONDS)
        assert [each.poll() for each in both] == [None, None]
    assert not cause.found(tmp_path)


def test_the_first_time_may_take_longer(rank: Rank, tmp_path: Path) -> None:
    """As a step that is compiled."""
    with watching(tmp_path, range(1), SECONDS):
        compiling = rank(0, "heartbeat.doing('compiles', first=True); time.sleep(1000)")
        time.sleep(2 * SECONDS)
        assert compiling.poll() is None


def test_a_rank_that_is_done_need_not_get_on(rank: Rank, tmp_path: Path) -> None:
    with watching(tmp_path, range(1), SECONDS):
        done = rank(0, "heartbeat.doing(heartbeat.DONE); time.sleep(1000)")
        time.sleep(2 * SECONDS)
        assert done.poll() is None


def test_signs_of_an_earlier_start_count_for_nothing(rank: Rank, tmp_path: Path) -> None:
    """On another machine than the first, they lie there until that one begins."""
    gone = rank(0, TICKS)
    gone.kill()
    gone.wait()
    cause.leave(tmp_path, Cause(0, "an old error", 1, 1))
    other = rank(5, TICKS)
    with watching(tmp_path, range(1, 2), SECONDS):
        time.sleep(2 * SECONDS)
        assert other.poll() is None


def test_who_is_left_behind_is_ended(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not notice that another one is gone."""
    monkeypatch.setattr(watchdog, "LEFT_SECONDS", 0.5)
    with watching(tmp_path, range(2), 1000):
        first, second = rank(0, TICKS), rank(1, TICKS)
        first.kill()
        first.wait()
        assert ended(second) == -signal.SIGKILL


def test_an_error_on_another_machine_ends_the_ranks_here(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LEFT_SECONDS", 0.5)
    with watching(tmp_path, range(1), 1000):
        here = rank(0, TICKS)
        cause.leave(tmp_path, Cause(7, "rank 7 failed", 1, time.time_ns()))
        assert ended(here) == -signal.SIGKILL


def test_an_end_that_all_agree_on_is_no_failure(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank writes its report while the others have ended with the same error."""
    monkeypatch.setattr(watchdog, "LEFT_SECONDS", 0.5)
    with watching(tmp_path, range(1), 1000):
        here = rank(0, TICKS)
        cause.leave(tmp_path, Cause(1, "stopped", 130, time.time_ns()))
        time.sleep(1.5)
        assert here.poll() is None


def test_a_half_written_sign_is_passed_over(tmp_path: Path) -> None:
    heartbeat.beat_file(tmp_path, 0).write_text('{"rank": 0, "ho')
    good = heartbeat.Beat(1, "host", os.getpid(), 3, "trains", False)
    heartbeat.beat_file(tmp_path, 1).write_text(json.dumps(good._asdict()))
    assert heartbeat.read(tmp_path) == [good]
