"""VisualDL's log files: a length and a Record message each. Field numbers are those of visualdl/proto/record.proto."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from danlu.watch.formats import wire
from danlu.watch.formats.log import Log, Point, Setting, Spread
from danlu.watch.histogram import Histogram

_STEP, _TAG, _TIME = 1, 2, 3
_SCALAR, _HISTOGRAM, _META, _TEXT, _SETTINGS, _TAGGED = 4, 8, 10, 12, 13, 14
_LARGEST_RECORD = 1 << 30


class VisualDLWriter:
    """Writes one log file; VisualDL shows one a folder. Scalars are float32, as VisualDL's are; times are milliseconds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self.file: IO[bytes] = (folder / f"vdlrecords.{int(now):010d}.log.danlu").open("wb")
        self._write("meta_data_tag", 0, now, wire.content(_META, wire.text(1, "")))

    def scalar(self, name: str, step: int, time: float, value: float) -> None:
        self._write(name, step, time, wire.single(_SCALAR, value))

    def histogram(self, name: str, step: int, time: float, found: Histogram) -> None:
        made = wire.doubles(1, found.counts.astype(np.float64)) + wire.doubles(2, found.edges)
        self._write(name, step, time, wire.content(_HISTOGRAM, made))

    def text(self, name: str, step: int, time: float, text: str) -> None:
        self._write(name, step, time, wire.content(_TEXT, wire.text(1, text)))

    def settings(self, time: float, values: dict[str, Setting]) -> None:
        made = b"".join(wire.content(1, _setting(value) + wire.text(4, name)) for name, value in values.items())
        self._write("hparam", 1, time, wire.content(_SETTINGS, made))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def _write(self, name: str, step: int, time: float, what: bytes) -> None:
        # VisualDL puts names into addresses and refuses this sign.
        head = wire.integer(_STEP, step) + wire.text(_TAG, name.replace("%", "_")) + wire.integer(_TIME, round(time * 1000))
        record = wire.content(1, head + what)
        self.file.write(struct.pack("<Q", len(record)) + record)


def read(file: Path) -> Log:
    """One log file, also one that is still written or was cut off. wire.Malformed: it is none."""
    log = Log()
    for record in _records(file):
        for value in wire.Message(record).messages(1):
            _take(log, value)
    return log


def _take(log: Log, value: wire.Message) -> None:
    name, step, moment = value.text(_TAG), value.integer(_STEP), value.integer(_TIME) / 1000
    if _SCALAR in value:
        log.scalars.setdefault(name, []).append(Point(step, moment, value.number(_SCALAR)))
    elif _TAGGED in value:
        inner = value.message(_TAGGED)
        log.scalars.setdefault(f"{name}/{inner.text(1)}", []).append(Point(step, moment, inner.number(2)))
    elif _HISTOGRAM in value:
        found = value.message(_HISTOGRAM)
        counts, edges = found.numbers(1, "<f8"), found.numbers(2, "<f8")
        if len(counts) and len(edges) == len(counts) + 1:
            log.histograms.setdefault(name, []).append(Spread(step, moment, edges, counts))
    elif _TEXT in value:
        log.texts.append((step, moment, name, value.message(_TEXT).text(1)))
    elif _SETTINGS in value:
        for entry in value.message(_SETTINGS).messages(1):
            if 3 in entry:
                log.settings[entry.text(4)] = entry.text(3)
            else:
                log.settings[entry.text(4)] = entry.number(2) if 2 in entry else entry.integer(1)


def _records(file: Path) -> Iterator[bytes]:
    """Up to the end, or up to a record that is not whole."""
    with file.open("rb") as stream:
        while len(head := stream.read(8)) == 8:
            (size,) = struct.unpack("<Q", head)
            if size > _LARGEST_RECORD:
                raise wire.Malformed("not a record")
            record = stream.read(size)
            if len(record) < size:
                return
            yield record


def _setting(value: Setting) -> bytes:
    if isinstance(value, str):
        return wire.text(3, value)
    return wire.integer(1, value) if isinstance(value, int) else wire.double(2, value)
