"""Watches the heartbeats of a run: ends it when nothing gets on any more, and hurries those that a failure left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from danlu import heartbeat
from danlu.errors import DanluError
from danlu.heartbeat import Beat
from danlu.launch import cause
from danlu.launch.cause import Cause
from danlu.launch.stacks import Standing, shown, standing

FIRST_TIMES = 10
"""How much longer than watch.hang_seconds something may take that happens for the first time since the start."""
LEFT_SECONDS = 5.0
"""How long ranks may live on after another one has failed."""
ANSWER_SECONDS = 3.0
POLL_SECONDS = 0.5
REPORT = "hang.txt"
AGAIN = "run the same command to go on from the last checkpoint"


class Watchdog:
    """A thread that watches the ranks of a run.

    On a hang the ranks of all machines say where they stand; the verdict is left as the cause of the end, and those of this
    machine are killed. In one of the ranks ``end`` is called, before the kill, since it cannot kill itself.
    """

    def __init__(self, logs: Path, own: range, hang_seconds: float, end: Callable[[str], None] | None = None) -> None:
        """``own``: the ranks of this machine; before all of them have given a sign, others' may be of a start before."""
        self.logs, self.own, self.hang_seconds, self.end = logs, own, hang_seconds, end
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()

    def _watch(self) -> None:
        seen: list[Beat] = []
        moved = time.monotonic()
        failed: float | None = None
        while not self.stopped.wait(POLL_SECONDS):
            beats = heartbeat.read(self.logs)
            now = time.monotonic()
            if not {beat.rank for beat in beats}.issuperset(self.own):
                continue
            if beats != seen:
                seen, moved = beats, now
            if failed is None and self._has_failed(beats):
                failed = now
            if failed is not None and now - failed > LEFT_SECONDS:
                self._kill(beats)
                return
            working = [beat for beat in beats if beat.doing != heartbeat.DONE]
            patience = self.hang_seconds * (FIRST_TIMES if any(beat.first for beat in working) else 1)
            if failed is None and working and now - moved > patience:
                verdict = self._verdict(working, now - moved)
                cause.leave(self.logs, Cause(self.own[0], verdict, DanluError.exit_code, when=0))
                if self.end is not None:
                    self.end(verdict)
                self._kill(beats)
                return

    def _has_failed(self, beats: list[Beat]) -> bool:
        """Whether some rank, here or elsewhere, has ended with an error of its own, or without a word."""
        if any(not each.agreed for each in cause.found(self.logs)):
            return True
        return any(beat.doing != heartbeat.DONE and not _alive(beat.pid) for beat in beats if _here(beat))

    def _verdict(self, beats: list[Beat], seconds: float) -> str:
        """Which rank is at fault, and where the others wait for it."""
        places = self._ask(beats)
        report = self.logs / REPORT
        lines = [f"No progress for {seconds:.0f} seconds. Where each rank stands:"]
        for beat in beats:
            place = places[beat.rank]
            where = f"waits in {place.waits}, called by {place.at}" if place.waits else f"is in no collective, but at {place.at}"
            lines += [f"rank {beat.rank} ({beat.host}, process {beat.pid}), {beat.doing}: {where}", *shown(place)]
        with suppress(OSError):
            report.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"no progress for {seconds:.0f} seconds: {_blame(beats, places)}; stacks of all ranks: {report}; {AGAIN}"

    def _ask(self, beats: list[Beat]) -> dict[int, Standing]:
        """Have every rank leave its stacks, those that cannot run Python by a signal."""
        (self.logs / heartbeat.ASKED).touch()
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until and not all(heartbeat.flight_file(self.logs, beat.rank).exists() for beat in beats):
            time.sleep(0.1)
        for beat in beats:
            if _here(beat) and not heartbeat.flight_file(self.logs, beat.rank).exists():
                with suppress(OSError):
                    os.kill(beat.pid, signal.SIGUSR2)
                    time.sleep(0.2)
        return {beat.rank: self._standing(beat.rank) for beat in beats}

    def _standing(self, rank: int) -> Standing:
        dump, in_flight = "", []
        with suppress(OSError):
            dump = heartbeat.stack_file(self.logs, rank).read_text(encoding="utf-8", errors="replace")
        with suppress(OSError, ValueError):
            in_flight = json.loads(heartbeat.flight_file(self.logs, rank).read_text(encoding="utf-8"))
        return standing(dump, in_flight)

    def _kill(self, beats: list[Beat]) -> None:
        for beat in beats:
            if _here(beat) and beat.pid != os.getpid() and beat.doing != heartbeat.DONE:
                with suppress(OSError):
                    os.kill(beat.pid, signal.SIGKILL)


def _blame(beats: list[Beat], places: dict[int, Standing]) -> str:
    """The ranks that are in no collective hold up those that are; when all are in one, what each waits in."""
    free = [beat for beat in beats if places[beat.rank].waits is None]
    waiting = [beat for beat in beats if places[beat.rank].waits is not None]
    others = "; ".join(f"{_ranks(those)} in {what} ({at})" for (what, at), those in _together(waiting, places))
    if not free:
        return f"every rank waits, {others}: they do not wait for the same, or the network between them is gone"
    held = "; ".join(f"rank {beat.rank} is in no collective, but at {places[beat.rank].at} ({beat.doing})" for beat in free)
    return f"{held}, while {'it waits for nobody' if not waiting else f'the others wait for it: {others}'}"


def _together(beats: list[Beat], places: dict[int, Standing]) -> list[tuple[tuple[str, str], list[int]]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for beat in beats:
        place = places[beat.rank]
        groups.setdefault((str(place.waits), place.at), []).append(beat.rank)
    return list(groups.items())


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _here(beat: Beat) -> bool:
    return beat.host == socket.gethostname()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def watching(logs: Path, own: range, hang_seconds: float) -> Iterator[None]:
    """Watch the ranks that are started inside; those of this machine are ``own``. A hang is left as the cause of their end."""
    watchdog = Watchdog(logs, own, hang_seconds)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
