"""Work at the pace of a thread: all of it is done, with rests between."""

from __future__ import annotations

import threading

import pytest

from danlu.pace import CHUNK_BYTES, Pace, chunks, paced


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1])
def test_chunks_cover_all_once(size: int) -> None:
    pieces = list(chunks(size))
    assert [piece.start for piece in pieces] == list(range(0, size, CHUNK_BYTES))
    assert sum(piece.stop - piece.start for piece in pieces) == size


def test_a_thread_rests_for_nine_times_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, rests = Pace(0.1), []
    monkeypatch.setattr(pace, "rest", lambda worked: rests.append(worked))
    with paced(pace):
        assert len(list(chunks(3 * CHUNK_BYTES))) == len(rests) == 3
    list(chunks(CHUNK_BYTES))
    assert len(rests) == 3  # none outside

    waits: list[float] = []
    other = Pace(0.1)
    monkeypatch.setattr(other.hurried, "wait", waits.append)
    other.rest(0.5)
    assert waits == [pytest.approx(4.5)]


def test_who_waits_for_it_ends_the_rests() -> None:
    pace, done = Pace(1e-9), threading.Event()

    def work() -> None:
        with paced(pace):
            list(chunks(5 * CHUNK_BYTES))
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert not done.wait(0.05)
    pace.hurry()
    thread.join(60)
    assert done.is_set()
