"""Saving while training goes on, and with several processes: here threads that wait for each other as processes do."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from danlu.engines.base import Engine, Snapshot
from danlu.errors import RunStopped, UserError
from danlu.files import sha256
from danlu.train import checkpoint
from danlu.train.checkpoint import MANIFEST, STATE, latest
from danlu.train.saver import Saver

RANKS = 3
Write = Callable[[Path], list[Path]]


class Member:
    """One process of a layout, as far as saving needs it."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any], write: Write) -> None:
        self.rank, self.barrier, self.values, self.write = rank, barrier, values, write

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(20)
        found = list(self.values)
        self.barrier.wait(20)
        return found

    def agree(self, flag: bool) -> bool:
        return any(self.gather(flag))

    def snapshot(self, copy: bool) -> Snapshot:
        return Snapshot({"copied": copy}, self.write)


def part(rank: int, text: str = "x") -> Write:
    def write(folder: Path) -> list[Path]:
        (folder / f"part-{rank}").write_text(text * (rank + 1))
        return [folder / f"part-{rank}"]

    return write


def together(work: Callable[[Engine], Any], writes: list[Write] | None = None) -> list[Any]:
    """Do it in every process; what each returned, or raised."""
    writes = writes or [part(rank) for rank in range(RANKS)]
    barrier, values = threading.Barrier(len(writes)), [None] * len(writes)
    results: list[Any] = [None] * len(writes)

    def member(rank: int) -> None:
        try:
            results[rank] = work(cast(Engine, Member(rank, barrier, values, writes[rank])))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(len(writes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def save(folder: Path, step: int, background: bool = False, writes: list[Write] | None = None) -> list[Any]:
    def work(engine: Engine) -> Any:
        saver = Saver(engine, folder)
        saver.begin(step, {"said": f"after {step} by {engine.rank}"}, 3, background)
        return saver.finish(wait=True)

    return together(work, writes)


def raises(error: Exception) -> Write:
    def write(_folder: Path) -> list[Path]:
        raise error

    return write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("background", [False, True])
def test_every_process_writes_and_sums_up_its_own(tmp_path: Path, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[str] = []
    monkeypatch.setattr(checkpoint, "sha256", lambda path: summed.append(path.name) or sha256(path))
    results = save(tmp_path, 5, background)
    assert [result.path for result in results] == [tmp_path / "step-00000005"] * RANKS
    assert sorted(summed) == ["part-0", "part-1", "part-2", STATE]
    assert names(tmp_path / "step-00000005") == [MANIFEST, "part-0", "part-1", "part-2", STATE]
    files = json.loads((tmp_path / "step-00000005" / MANIFEST).read_text())["files"]
    for name, written in files.items():
        file = tmp_path / "step-00000005" / name
        assert written == {"bytes": file.stat().st_size, "sha256": sha256(file)}
    assert files.keys() == {"part-0", "part-1", "part-2", STATE}
    found = latest(tmp_path, pytest.fail)
    assert found is not None
    assert found.state == {"step": 5, "said": "after 5 by 0", "engine": {"copied": background}}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("broken", range(RANKS))
def test_one_that_cannot_write_stops_all_with_one_message(tmp_path: Path, broken: int, background: bool) -> None:
    save(tmp_path, 5)
    writes = [part(rank) for rank in range(RANKS)]
    writes[broken] = raises(OSError(28, "No space left on device"))
    for result in save(tmp_path, 6, background, writes):
        assert isinstance(result, RunStopped)
        assert str(result) == (
            f"{tmp_path / 'step-00000006'}: the checkpoint could not be written: the disk is full; the last good one is "
            f"{tmp_path / 'step-00000005'}; make room and run the same command to go on"
        )
    assert names(tmp_path) == ["step-00000005"]


def test_a_folder_that_one_does_not_see(tmp_path: Path) -> None:
    """As on machines that share no file system."""
    (tmp_path / "here").mkdir()

    def work(engine: Engine) -> Any:
        saver = Saver(engine, tmp_path / ("here" if engine.rank < 2 else "elsewhere"))
        saver.begin(5, {}, 3, background=False)
        return saver.finish(wait=True)

    for result in together(work):
        assert isinstance(result, RunStopped) and "No such file or directory" in str(result)
    assert names(tmp_path / "here") == []

    save(tmp_path / "here", 5)
    (tmp_path / "elsewhere").mkdir()
    for result in together(lambda engine: latest(tmp_path / ("here" if engine.rank < 2 else "elsewhere"), str, engine=engine)):
        assert isinstance(result, UserError) and "not all processes see the same checkpoints" in str(result)


def test_a_mistake_of_the_program_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    for background in (False, True):
        (result,) = save(tmp_path, 5, background, [raises(ValueError("a mistake"))])
        assert isinstance(result, ValueError)
        assert names(tmp_path) == []


def test_training_goes_on_while_it_is_written(tmp_path: Path) -> None:
    go_on = threading.Event()

    def slow(folder: Path) -> list[Path]:
        assert go_on.wait(20)
        return part(1)(folder)

    def work(engine: Engine) -> Any:
        saver = Saver(engine, tmp_path)
        saver.begin(5, {}, 3, background=True)
        early = [saver.finish(wait=False) for _ in range(3)]  # also those whose part is written wait for the others
        there = names(tmp_path)
        engine.agree(False)
        go_on.set()
        return early, there, saver.finish(wait=True), saver.finish(wait=True)

    for early, there, done, again in together(work, [part(0), slow]):
        assert early == [None, None, None] and there == ["step-00000005.partial"]
        assert done.path == tmp_path / "step-00000005" and again is None
        assert 0 < done.stood_still <= done.seconds
    assert latest(tmp_path, pytest.fail) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_thread_leaves_the_cores_to_training(tmp_path: Path) -> None:
    found = []

    def write(folder: Path) -> list[Path]:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return part(0)(folder)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    for background in (True, False):
        save(tmp_path, 5, background, [write])
    assert found == [before + 10, before] and os.getpriority(os.PRIO_PROCESS, 0) == before


def test_an_error_in_the_background_is_raised_in_the_next_step(tmp_path: Path) -> None:
    def work(engine: Engine) -> Any:
        saver = Saver(engine, tmp_path)
        saver.begin(5, {}, 3, background=True)
        assert saver.part is not None and saver.part.thread is not None
        saver.part.thread.join()
        return saver.finish(wait=False)

    (result,) = together(work, [raises(OSError(28, "No space left on device"))])
    assert isinstance(result, RunStopped) and "the disk is full; there is none before it" in str(result)


@pytest.mark.parametrize("moment", ["first", "last"])
def test_killed_while_it_is_written_in_the_background(tmp_path: Path, moment: str) -> None:
    """Once when a file is begun, once when all is written and only the manifest is missing."""
    save(tmp_path, 5)
    child = os.fork()
    if not child:
        begun = threading.Event()

        def write(folder: Path) -> list[Path]:
            files = part(0)(folder)
            begun.set()
            return files if moment == "last" else [] if threading.Event().wait(20) else files

        saver = Saver(cast(Engine, Member(0, threading.Barrier(1), [None], write)), tmp_path)
        saver.begin(6, {}, 3, background=True)
        begun.wait(20)
        if moment == "last":
            assert saver.part is not None and saver.part.thread is not None
            saver.part.thread.join()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert names(tmp_path / "step-00000006.partial") == ["part-0"]
    found = latest(tmp_path, pytest.fail, repair=True)
    assert found is not None and found.step == 5
    assert names(tmp_path) == ["step-00000005"]


def test_the_work_of_looking_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is read by one process; the state, which all need, by all."""
    save(tmp_path, 5)
    read: list[str] = []
    monkeypatch.setattr(checkpoint, "sha256", lambda path: read.append(path.name) or sha256(path))
    results = together(lambda engine: latest(tmp_path, pytest.fail, engine=engine))
    assert all(result == results[0] and result.step == 5 for result in results)
    assert sorted(read) == ["part-0", "part-1", "part-2", *[STATE] * RANKS]


@pytest.mark.parametrize("damaged", ["part-0", "part-1", "part-2", STATE])
def test_what_one_finds_damaged_is_damaged_for_all(tmp_path: Path, damaged: str) -> None:
    save(tmp_path, 5)
    save(tmp_path, 6)
    file = tmp_path / "step-00000006" / damaged
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    def work(engine: Engine) -> Any:
        lines: list[str] = []
        return latest(tmp_path, lines.append, repair=engine.rank == 0, engine=engine), lines

    for found, lines in together(work):
        assert found.step == 5
        assert lines == [
            f"{tmp_path / 'step-00000006'} is damaged ({damaged} was altered since it was written); looking at the one before it"
        ]
    assert names(tmp_path) == ["step-00000005", "step-00000006.damaged"]
