from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from danlu.data.aside import building
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.errors import DanluError, UserError

from .conftest import lines, recipe, write_jsonl

PREPARE = """
import sys
from pathlib import Path
from danlu.data import progress
from danlu.data.prepare import prepare
from danlu.errors import DanluError
from tests.data.conftest import recipe
progress.EVERY = 0.0
try:
    prepare(recipe([{"path": sys.argv[1]}], shard_tokens=200_000), Path(sys.argv[2]), lambda line: print(line, flush=True))
except DanluError as error:
    print("ERROR", type(error).__name__, error, flush=True)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some seconds of work."""
    return write_jsonl(tmp_path_factory.mktemp("large") / "large.jsonl", lines(12_000, 150))


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second of work."""
    return write_jsonl(tmp_path_factory.mktemp("medium") / "medium.jsonl", lines(3000, 150))


def start(source: Path, folder: Path, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + PREPARE, str(source), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def test_a_folder_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    folder.parent.mkdir()
    with building(folder, print) as partial:
        (partial / "a").write_text("a")
        assert not folder.exists()
    assert [path.name for path in folder.parent.iterdir()] == ["data"]
    assert (folder / "a").read_text() == "a"


def test_nothing_is_left_when_the_block_fails(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt), building(folder, print) as partial:
        (partial / "a").write_text("a")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_killed_preparation_starts_over(large: Path, tmp_path: Path) -> None:
    """Killed for real, at some moments of the reading, encoding and writing; the folder is complete or absent."""
    folder, choice = tmp_path / "data", random.Random(1)
    cut_off = 0
    for attempt in range(3):
        process = start(large, folder)
        assert process.stdout is not None
        wanted = "tokenising" if attempt else "sources"
        for line in process.stdout:
            if line.startswith(wanted):
                break
        time.sleep(choice.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not folder.exists()
        cut_off += (tmp_path / "data.partial").exists()
    assert cut_off == 3
    said: list[str] = []
    made = prepare(recipe([{"path": str(large)}], shard_tokens=200_000), folder, said.append)
    assert "data.partial: left by a preparation that was cut off; removed, starting over" in said[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert made.train.documents + made.validation.documents == 12_000
    Prepared.open(folder, verify=True)


def test_two_preparations_of_one_folder(medium: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = start(medium, folder)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("sources")
    with pytest.raises(UserError, match="another process is preparing this folder"):
        prepare(recipe([{"path": str(medium)}]), folder, print)
    rest, _ = first.communicate()
    assert "prepared: " in rest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize("limit", [100, 60_000])
def test_a_full_disk(medium: Path, tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands in for the disk: writing fails in the same way, in the middle of a file."""
    before = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    process = start(medium, tmp_path / "data", before)
    said, _ = process.communicate()
    assert "Traceback" not in said
    error = next(line for line in said.splitlines() if line.startswith("ERROR"))
    assert error.startswith(
        f"ERROR DanluError {tmp_path / 'data'}: cannot be written: the file size limit is reached; nothing was left"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room(tmp_path: Path) -> None:
    with (
        pytest.raises(DanluError, match="the disk is full; nothing was left there; make room"),
        building(tmp_path / "data", print),
        open("/dev/full", "wb") as file,
    ):
        file.write(b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(medium: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        prepare(recipe([{"path": str(medium)}]), tmp_path / "file" / "data", print)
