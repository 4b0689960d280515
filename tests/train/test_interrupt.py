from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from danlu.train.interrupt import NOTICE, watched


def test_nothing_asked() -> None:
    with watched() as interrupt:
        assert interrupt.requested is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_that_is_acknowledged_at_once(number: int, capfd: pytest.CaptureFixture[str]) -> None:
    with watched() as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.requested is True
        assert NOTICE in capfd.readouterr().err


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_ctrl_c_after_it_stops_now(first: int) -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_scheduler_may_repeat_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with watched() as interrupt:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested is True
    assert capfd.readouterr().err.count(NOTICE) == 1


@pytest.mark.parametrize("fail", [False, True])
def test_the_handlers_before_come_back(fail: bool) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with watched():
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
            if fail:
                raise ValueError
    except ValueError:
        assert fail
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_nothing_is_caught() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def work() -> None:
        with watched() as interrupt:
            found.extend([signal.getsignal(signal.SIGINT), interrupt.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, False]


@pytest.mark.parametrize("stderr", ["closed", "broken"])
def test_a_lost_stderr_is_no_hindrance(stderr: str) -> None:
    code = """
import os, signal
from danlu.train.interrupt import watched
with watched() as interrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    os.write(1, str(interrupt.requested).encode())
os._exit(0)
"""
    shell = f'"{sys.executable}" -c "$0" ' + ("2>&-" if stderr == "closed" else "2>/dev/full")
    made = subprocess.run(["sh", "-c", shell, code], stdout=subprocess.PIPE, text=True, check=True)
    assert made.stdout == "True"


def test_a_signal_in_the_middle_of_a_print() -> None:
    """A handler that prints while Python's stream waits for a slow reader would die of a reentrant call."""
    code = """
import os, signal, sys, threading, time
from danlu.train.interrupt import watched
with watched() as interrupt:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    sys.stdout.write("x" * 1_000_000)
    sys.stdout.flush()
    sys.stderr.write(str(interrupt.requested))
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=buffered)
    assert process.stderr is not None
    assert process.stderr.readline() == "\n"
    assert process.stderr.readline() == f"{NOTICE}\n", "said while the reader still lets it wait"
    out, err = process.communicate()
    assert (process.returncode, len(out), err) == (0, 1_000_000, "True")
