"""The runs that a page shows: found below what was named, each with a short state that is cheap to ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from danlu.errors import UserError
from danlu.watch import store
from danlu.watch.ends import mark
from danlu.watch.facts import ending, status

METRICS = "metrics.sqlite"
RECENT = 200
"""Newest steps by whose pace the time that is left is told."""


@dataclass(eq=False)
class Run:
    """One run folder. What is kept of its file is read anew once the file has changed."""

    id: str
    folder: Path
    _seen: tuple[Any, ...] = field(default=(), repr=False)
    _state: dict[str, Any] = field(default_factory=dict, repr=False)
    _segments: list[store.Segment] = field(default_factory=list, repr=False)
    _ended: str | None = field(default=None, repr=False)

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    def state(self) -> dict[str, Any]:
        """Status, newest step, planned steps, seconds left and what tells whether anything changed; nothing of a curve."""
        now = mark(self.metrics)
        if now != self._seen or not self._state:
            try:
                self._read()
            except UserError as error:
                self._segments, self._ended = [], None
                self._state = {"problem": str(error).replace(str(self.metrics), METRICS)}
            self._seen = now
        return {"id": self.id, **self._state, "status": status(self._segments, self._ended)}

    def _read(self) -> None:
        self._segments, events = store.segments(self.metrics), store.events(self.metrics)
        self._ended = ending(self._segments, events)
        step, pace = _pace(self.metrics, self._segments)
        segment = self._segments[-1] if self._segments else None
        total = segment.info.get("steps") if segment else None
        left = None
        if step is not None and pace is not None and isinstance(total, int | float):  # an imported log may say anything
            left = max(0.0, (total - step) * pace)
        self._state = {
            "step": step,
            "total": total,
            "seconds_left": left,
            "started": None if segment is None else segment.started,
            "seen": None if segment is None else segment.seen,
            "segments": len(self._segments),
            "events": len(events),
        }


def _pace(path: Path, segments: list[store.Segment]) -> tuple[int | None, float | None]:
    """The newest step, and the seconds of a recent one with all that happens between steps."""
    query = "SELECT step, time FROM steps WHERE segment = ? ORDER BY step DESC LIMIT ?"
    with store.reading(path) as connection:
        for segment in reversed(segments):
            if rows := connection.execute(query, (segment.id, RECENT)).fetchall():
                steps, clock = np.array(rows, dtype=np.float64).T
                span = steps[0] - steps[-1]
                return int(steps[0]), float((clock[0] - clock[-1]) / span) if span > 0 else None
    return None, None


class Runs:
    """Runs by a short name each. New ones below a named folder are found as they come."""

    def __init__(self, places: Sequence[Path]) -> None:
        """UserError: a place is no folder."""
        for place in places:
            if not place.is_dir():
                raise UserError(f"{place}: no such run folder, nor a folder of runs")
        self.places = list(places)
        self._runs: dict[Path, Run] = {}
        self._looked = -np.inf
        self.look()

    def look(self) -> None:
        """Find runs that are new; those that are gone go."""
        found = [folder for place in self.places for folder in _below(place)]
        taken = {run.id for folder, run in self._runs.items() if folder in found}
        kept: dict[Path, Run] = {}
        for folder in dict.fromkeys(found):
            run = self._runs.get(folder) or Run(_free(folder.resolve().name, taken), folder)
            taken.add(run.id)
            kept[folder] = run
        self._runs = kept
        self._looked = time.monotonic()

    def all(self, fresh_seconds: float = 2.0) -> list[Run]:
        """All runs; folders are looked at again after so long."""
        if time.monotonic() - self._looked > fresh_seconds:
            self.look()
        return list(self._runs.values())

    def get(self, name: str) -> Run | None:
        """The run of this name, which is never used as a path."""
        return next((run for run in self._runs.values() if run.id == name), None)


def _below(place: Path) -> list[Path]:
    """The place itself where it is a run, else the runs in it."""
    if (place / METRICS).is_file() or (place / "recipe.yaml").is_file():
        return [place]
    try:
        return sorted(inner for inner in place.iterdir() if (inner / METRICS).is_file())
    except OSError:
        return []


def _free(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free
