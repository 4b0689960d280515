"""The metrics store: exact values, segments, crashes, and every way in which a disk or a file can fail."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from danlu.errors import UserError
from danlu.watch import recorder as recording
from danlu.watch import store
from danlu.watch.histogram import histogram
from danlu.watch.store import Recorder

METRICS = [
    *("train/loss", "train/gradient_norm", "train/learning_rate", "train/tokens_per_second", "train/mfu", "train/loss_scale"),
    *("validation/loss", "validation/ratio", "time/step", "time/data_wait", "memory/resident_bytes", "memory/device_bytes"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.sqlite"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    with Recorder.open(path) as opened:
        yield opened


def pairs(path: Path, name: str) -> list[tuple[int, float]]:
    steps, values = store.series(path, name)
    assert steps.dtype == np.int64 and values.dtype == np.float64
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_values_events_and_segments_come_back_as_recorded(path: Path) -> None:
    before = time.time()
    with Recorder.open(path) as recorder:
        assert recorder.start_segment(0, {"host": "一号机", "ranks": 1}) == 1
        recorder.scalars(0, {"train/loss": 0.1 + 0.2, "train/mfu": 0.0})
        recorder.scalars(1, {"train/loss": 1e-300})
        recorder.event(1, "checkpoint", "saved 检查点 🔥", path=Path("checkpoints/step-00000001"), bytes=12)
    assert recorder.dropped == 0
    assert store.names(path) == ["train/loss", "train/mfu"]
    assert pairs(path, "train/loss") == [(0, 0.1 + 0.2), (1, 1e-300)]
    assert pairs(path, "train/mfu") == [(0, 0.0)]
    (segment,) = store.segments(path)
    assert (segment.id, segment.first_step, segment.info) == (1, 0, {"host": "一号机", "ranks": 1})
    assert before <= segment.started <= segment.seen <= time.time()
    (event,) = store.events(path)
    assert (event.segment, event.step, event.kind, event.message) == (1, 1, "checkpoint", "saved 检查点 🔥")
    assert event.data == {"path": "checkpoints/step-00000001", "bytes": 12}
    steps, clock = store.times(path)
    assert steps.tolist() == [0, 1] and before <= clock[0] <= clock[1] <= time.time()


def test_what_is_not_finite_survives_and_what_is_missing_is_not_zero(path: Path, recorder: Recorder) -> None:
    recorder.start_segment(0, {})
    recorder.scalars(0, {"train/loss": math.nan})
    recorder.scalars(1, {"train/loss": math.inf})
    recorder.scalars(2, {"train/gradient_norm": 1.0})
    recorder.scalars(3, {"train/loss": -math.inf})
    recorder.flush()
    steps, values = store.series(path, "train/loss")
    assert steps.tolist() == [0, 1, 3]
    assert math.isnan(values[0]) and values[1] == math.inf and values[2] == -math.inf
    steps, values = store.series(path, "never/recorded")
    assert steps.shape == values.shape == (0,)


def test_a_rollback_replaces_the_curve_and_keeps_the_old_one_in_the_file(path: Path) -> None:
    for number, (first, stop) in enumerate([(1, 9), (5, 8), (7, 12)], start=1):
        with Recorder.open(path) as recorder:
            assert recorder.start_segment(first, {}) == number
            for step in range(first, stop):
                recorder.scalars(step, {"train/loss": number * 100 + step})
    # A validation ahead of a segment's first step counts too, and the newest of equal steps wins.
    with Recorder.open(path) as recorder:
        recorder.start_segment(20, {})
        recorder.scalars(11, {"train/loss": 411.0})
        recorder.scalars(19, {"train/loss": 419.0})
    expected = [*range(101, 105), 205, 206, *range(307, 311), 411, 419]
    assert [value for _, value in pairs(path, "train/loss")] == expected
    assert [step for step, _ in pairs(path, "train/loss")] == [*range(1, 12), 19]
    with sqlite3.connect(path) as connection:
        (rows,) = connection.execute('SELECT count(*) FROM "values"').fetchone()
    connection.close()
    assert rows == 8 + 3 + 5 + 2


def test_a_step_recorded_in_parts_and_twice(path: Path, recorder: Recorder) -> None:
    recorder.start_segment(0, {})
    recorder.scalars(4, {"train/loss": 2.0})
    recorder.scalars(4, {"validation/loss": 3.0, "train/loss": 2.5})
    recorder.flush()
    assert pairs(path, "train/loss") == [(4, 2.5)]
    assert pairs(path, "validation/loss") == [(4, 3.0)]


def test_records_appear_without_a_flush_and_the_heartbeat_goes_on(path: Path, recorder: Recorder) -> None:
    recorder.start_segment(0, {})
    recorder.scalars(0, {"train/loss": 1.0})
    deadline = time.monotonic() + 2.0
    while not store.series(path, "train/loss")[0].size and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pairs(path, "train/loss") == [(0, 1.0)]
    seen = store.segments(path)[0].seen
    while store.segments(path)[0].seen == seen and time.monotonic() < deadline + 2.0:
        time.sleep(0.02)
    assert store.segments(path)[0].seen > seen


CHILD = """
import sys, time
from danlu.watch.store import Recorder

recorder = Recorder.open(sys.argv[1])
first, offset = int(sys.argv[2]), float(sys.argv[3])
recorder.start_segment(first, {})
for step in range(first, 1_000_000):
    recorder.scalars(step, {"train/loss": offset + step, "train/gradient_norm": 1.0})
    print(step, flush=True)
    time.sleep(0.002)
"""


def record_and_kill(path: Path, first: int, offset: float, seconds: float) -> tuple[int, int]:
    """Run a recording process, kill it with SIGKILL; the last step it had recorded two seconds before, and at the end."""
    command = [sys.executable, "-c", CHILD, str(path), str(first), str(offset)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started, early, last = None, first - 1, first - 1
        for line in process.stdout:
            started = started or time.monotonic()
            last = int(line)
            elapsed = time.monotonic() - started
            if elapsed <= seconds - 2.0:
                early = last
            if elapsed >= seconds:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    return early, last


def test_kill_9_loses_at_most_two_seconds_and_a_resume_merges(path: Path) -> None:
    early, last = record_and_kill(path, 0, 0.0, seconds=3.1)
    steps, _ = store.series(path, "train/loss")
    assert steps.tolist() == list(range(len(steps)))
    assert 0 < early <= steps[-1] <= last + 1

    resumed = int(steps[-1]) - 20
    early, last = record_and_kill(path, resumed, 0.5, seconds=2.5)
    assert resumed < early
    steps, values = store.series(path, "train/loss")
    assert steps.tolist() == list(range(len(steps))), "no step is missing, none is there twice"
    assert early <= steps[-1] <= last + 1
    assert np.array_equal(values, np.where(steps < resumed, steps, steps + 0.5))
    assert [segment.first_step for segment in store.segments(path)] == [0, resumed]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_reader_in_the_middle_of_reading_does_not_block_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0)  # a writer that had to wait would drop its record
    recorder = Recorder.open(path)
    recorder.start_segment(0, {})
    recorder.scalars(0, {"train/loss": 1.0})
    recorder.flush()
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute('SELECT count(*) FROM "values"').fetchone() == (1,)
    recorder.scalars(1, {"train/loss": 2.0})
    recorder.flush()
    assert reader.execute('SELECT count(*) FROM "values"').fetchone() == (1,), "the reader keeps its own view"
    reader.close()
    recorder.close()
    assert recorder.dropped == 0
    assert pairs(path, "train/loss") == [(0, 1.0), (1, 2.0)]


def test_nothing_but_the_file_stays_when_all_have_closed(path: Path) -> None:
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0})
        recorder.flush()
        assert pairs(path, "train/loss") == [(0, 1.0)]
        assert len(list(path.parent.iterdir())) == 3, "the log and its index, while it is being written"
    content = path.read_bytes()
    assert pairs(path, "train/loss") == [(0, 1.0)]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.sqlite"]
    assert path.read_bytes() == content


def test_readers_cannot_write(path: Path, recorder: Recorder) -> None:
    recorder.start_segment(0, {})
    with store.reading(path) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM segments")


def test_a_locked_file_costs_records_but_not_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.05)
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 0.0})
        recorder.flush()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        recorder.scalars(1, {"train/loss": 1.0, "new/name": 1.0})
        recorder.event(1, "checkpoint", "saved")
        recorder.flush()
        assert recorder.dropped == 3
        recorder.scalars(2, {"train/loss": 2.0})
        recorder.flush()
        assert recorder.dropped == 4
        other.execute("ROLLBACK")
        other.close()
        recorder.scalars(3, {"train/loss": 3.0, "new/name": 3.0})
    (warning,) = capfd.readouterr().err.splitlines()
    assert str(path) in warning and "locked" in warning
    assert pairs(path, "train/loss") == [(0, 0.0), (3, 3.0)]
    assert pairs(path, "new/name") == [(3, 3.0)]
    (told,) = store.events(path)
    assert (told.kind, told.data) == ("dropped", {"records": 4})
    assert told.step in (0, 3)  # a regular commit may come between the unlocking and the last record


def test_a_file_locked_from_the_start_gets_its_segment_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 0.0})
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Recorder.open(path) as recorder:
        assert recorder.start_segment(0, {"which": "second"}) == 0
        other.execute("ROLLBACK")
        other.close()
        recorder.scalars(0, {"train/loss": 5.0})
        recorder.flush()
    assert recorder.dropped == 0
    assert [segment.info for segment in store.segments(path)] == [{}, {"which": "second"}]
    assert pairs(path, "train/loss") == [(0, 5.0)]
    assert "locked" in capfd.readouterr().err


def test_a_full_disk_costs_records_but_not_the_run(path: Path) -> None:
    # A limit on the size of files is what a full disk looks like to SQLite, without needing a disk.
    program = """
    import resource, sys
    from danlu.watch.store import Recorder

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    recorder = Recorder.open(sys.argv[1])
    recorder.start_segment(0, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    step = 0
    while not recorder.dropped and step < 100_000:
        for step in range(step, step + 1000):
            recorder.scalars(step, {"train/loss": float(step)})
        step += 1
        recorder.flush()
    assert recorder.dropped == 1000, recorder.dropped
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY if hard == resource.RLIM_INFINITY else hard, hard))
    recorder.scalars(step, {"train/loss": float(step)})
    recorder.close()
    print(step)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "danlu: metrics cannot be stored" in done.stderr
    last = int(done.stdout)
    steps, values = store.series(path, "train/loss")
    assert steps.tolist() == [*range(last - 1000), last] and np.array_equal(values, steps)
    assert store.events(path)[-1].data == {"records": 1000}


def test_a_read_only_file_costs_records_but_not_the_run(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0})
    content = bytearray(path.read_bytes())
    content[18] = 3  # a write version from the future makes SQLite treat the file as read-only, even for root
    path.write_bytes(content)
    path.chmod(0o444)
    with Recorder.open(path) as recorder:
        assert recorder.start_segment(1, {}) == 0
        recorder.scalars(1, {"train/loss": 2.0})
    assert recorder.dropped == 1
    (warning,) = capfd.readouterr().err.splitlines()
    assert "readonly" in warning


@pytest.mark.parametrize("content", [b"not a database at all, " * 500, b"SQLite format 3\x00" + bytes(5000)])
def test_a_corrupted_file_costs_records_until_it_is_gone(path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(content)
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0})
        recorder.flush()
        assert recorder.dropped == 1
        assert path.read_bytes() == content, "what is there is not overwritten: a person may want to mend it"
        with pytest.raises(UserError, match="cannot be read as metrics"):
            store.names(path)
        path.unlink()
        recorder.scalars(1, {"train/loss": 2.0})
    assert len(capfd.readouterr().err.splitlines()) == 1
    assert pairs(path, "train/loss") == [(1, 2.0)]


@pytest.mark.parametrize("damaged", ["{", "[]", "1"])
def test_facts_that_are_damaged_are_an_error_of_the_file(path: Path, recorder: Recorder, damaged: str) -> None:
    recorder.start_segment(1, {})
    recorder.event(1, "note", "x", more=1)
    recorder.close()
    for table, column, read in (("segments", "info", store.segments), ("events", "data", store.events)):
        with closing(sqlite3.connect(path)) as connection, connection:
            (before,) = connection.execute(f"SELECT {column} FROM {table}").fetchone()
            connection.execute(f"UPDATE {table} SET {column} = ?", (damaged,))
        with pytest.raises(UserError, match="cannot be read as metrics"):
            read(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE {table} SET {column} = ?", (before,))


def test_a_file_that_breaks_under_the_run(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        for step in range(10_000):
            recorder.scalars(step, dict.fromkeys(METRICS, 1.0))
        recorder.flush()
        checkpointer = sqlite3.connect(path)
        checkpointer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        checkpointer.close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        recorder.scalars(100, dict.fromkeys(METRICS, 2.0))  # long gone from SQLite's cache: it must read the broken pages
        recorder.flush()
        assert recorder.dropped == len(METRICS)
        recorder.scalars(10_000, {"train/loss": 1.0})
        recorder.flush()
        assert recorder.dropped == len(METRICS) + 1
    (warning,) = capfd.readouterr().err.splitlines()
    assert "malformed" in warning


def test_a_folder_that_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Recorder.open(tmp_path / "missing" / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0})
    assert recorder.dropped == 1
    assert "unable to open" in capfd.readouterr().err
    with pytest.raises(UserError, match="no such metrics file"):
        store.series(tmp_path / "missing" / "metrics.sqlite", "train/loss")


def test_a_file_of_a_newer_format_is_refused_and_left_alone(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    content = path.read_bytes()
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.event(0, "start", "started")
    assert recorder.dropped == 1 and path.read_bytes() == content
    assert "newer than this danlu" in capfd.readouterr().err
    with pytest.raises(UserError, match="newer than this danlu"):
        store.events(path)


def test_text_that_sqlite_cannot_hold(path: Path, recorder: Recorder) -> None:
    recorder.start_segment(0, {})
    recorder.event(0, "stop", "cannot open \udcff.txt", file="\udcff.txt", number=math.nan, rows=np.int64(3))
    recorder.flush()
    (event,) = store.events(path)
    assert event.message == "cannot open ?.txt" and event.data["file"] == "\udcff.txt" and event.data["rows"] == "3"
    assert recorder.dropped == 0


def test_misuse_is_an_error_of_the_caller(path: Path, recorder: Recorder) -> None:
    with pytest.raises(RuntimeError, match="start_segment"):
        recorder.scalars(0, {"train/loss": 1.0})
    recorder.start_segment(0, {})
    with pytest.raises((TypeError, ValueError)):
        recorder.scalars(0, {"train/loss": "high"})  # type: ignore[dict-item]
    recorder.close()
    recorder.close()
    with pytest.raises(RuntimeError, match="start_segment"):
        recorder.event(0, "stop", "too late")


def test_recording_touches_the_file_once_a_commit_and_not_once_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "COMMIT_SECONDS", 3600)
    statements: list[str] = []
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        assert recorder._connection is not None
        recorder._connection.set_trace_callback(statements.append)
        for step in range(500):
            recorder.scalars(step, dict.fromkeys(METRICS, 1.25))
        assert statements == []
        recorder.flush()
        assert statements.count("BEGIN IMMEDIATE") == statements.count("COMMIT") == 1
    assert len(pairs(path, METRICS[0])) == 500


def test_histograms_come_back_as_recorded_and_a_rollback_replaces_them(path: Path) -> None:
    draw = np.random.default_rng(0).normal(size=(4, 1000))
    draw[0, :3] = np.nan, np.inf, 0.0
    made = [histogram(row) for row in draw]
    with Recorder.open(path) as recorder:
        recorder.start_segment(1, {})
        for step in (50, 100):
            recorder.histograms(step, {"layer/a/gradient": made[0], "layer/b/gradient": made[1]})
    with Recorder.open(path) as recorder:
        recorder.start_segment(51, {})
        recorder.histograms(100, {"layer/a/gradient": made[2]})
        recorder.histograms(150, {"layer/a/gradient": made[3]})
    assert store.names(path) == []
    assert store.histogram_names(path) == ["layer/a/gradient", "layer/b/gradient"]
    found = store.histograms(path, "layer/a/gradient")
    assert found.steps.tolist() == [50, 100, 150]
    for row, kept in enumerate((made[0], made[2], made[3])):
        assert (found.exponents[row], found.not_finite[row]) == (kept.exponent, kept.not_finite)
        assert found.counts[row].tolist() == kept.counts.tolist()
    assert store.histograms(path, "layer/b/gradient").steps.tolist() == [50]
    assert store.histograms(path, "nothing").counts.shape == (0, 64)


def test_a_file_from_before_histograms_is_read_and_continued(path: Path) -> None:
    with Recorder.open(path) as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 1.0})
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE histograms")
    connection.close()
    assert store.histogram_names(path) == [] and store.histograms(path, "x").steps.size == 0
    with Recorder.open(path) as recorder:
        recorder.start_segment(1, {})
        recorder.histograms(1, {"x": histogram([1.0])})
    assert store.histogram_names(path) == ["x"] and recorder.dropped == 0


def test_a_guest_writes_into_the_newest_segment_and_keeps_nobody_alive(path: Path) -> None:
    with Recorder.open(path) as run:
        run.start_segment(5, {"device": "cpu"})
        run.scalars(5, {"train/loss": 1.0})
    (before,) = store.segments(path)
    with Recorder.open(path) as guest:
        guest.attach()
        guest.scalars(3, {"mine/score": 0.5})
        guest.scalars(6, {"mine/score": 0.75})
    assert store.segments(path) == [before]
    assert pairs(path, "mine/score") == [(3, 0.5), (6, 0.75)]
    assert pairs(path, "train/loss") == [(5, 1.0)]


def test_a_guest_without_a_host_opens_a_segment(path: Path) -> None:
    with Recorder.open(path) as guest:
        guest.attach()
        guest.scalars(2, {"mine/score": 0.5})
        guest.flush()
        guest.scalars(3, {"mine/score": 0.6})
        (segment,) = store.segments(path)
        deadline = time.monotonic() + 10
        while store.segments(path)[0].seen == segment.seen and time.monotonic() < deadline:
            time.sleep(0.05)
        assert store.segments(path)[0].seen > segment.seen, "it is its own, and alive"
    assert segment.first_step == 0
    assert pairs(path, "mine/score") == [(2, 0.5), (3, 0.6)]
