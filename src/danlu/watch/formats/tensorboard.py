"""TensorBoard's event files: a TFRecord a record, and in each an Event message.

Field numbers are those of tensorboard/compat/proto: event, summary, histogram, tensor; plugins/hparams/plugin_data for settings.
"""

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

_WALL_TIME, _STEP, _VERSION, _SUMMARY, _SESSION = 1, 2, 3, 5, 7
_TAG, _SIMPLE, _HISTOGRAM, _TENSOR, _METADATA = 1, 2, 5, 8, 9
_LIMITS, _COUNTS = 6, 7
_FLOAT, _DOUBLE, _STRING = 1, 2, 7
_START = 1
_SETTINGS_TAG = "_hparams_/session_start_info"


class TensorBoardWriter:
    """Writes one event file. Scalars are float32, as TensorBoard's are."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self.file: IO[bytes] = (folder / f"events.out.tfevents.{int(now):010d}.danlu").open("wb")
        self._write(now, 0, wire.text(_VERSION, "brain.Event:2"))

    def scalar(self, name: str, step: int, time: float, value: float) -> None:
        self._value(time, step, wire.text(_TAG, name) + wire.single(_SIMPLE, value))

    def histogram(self, name: str, step: int, time: float, found: Histogram) -> None:
        """Least, most, sum and sum of squares are those of bins in which all entries lie in the middle."""
        edges, counts = found.edges, found.counts.astype(np.float64)
        middles = (edges[:-1] + edges[1:]) / 2
        used = np.flatnonzero(counts)
        least, most = (edges[used[0]], edges[used[-1] + 1]) if len(used) else (0.0, 0.0)
        figures = (least, most, counts.sum(), counts @ middles, counts @ middles**2)
        made = b"".join(wire.double(field, float(value)) for field, value in enumerate(figures, 1))
        made += wire.doubles(_LIMITS, edges[1:]) + wire.doubles(_COUNTS, counts)
        self._value(time, step, wire.text(_TAG, name) + wire.content(_HISTOGRAM, made))

    def text(self, name: str, step: int, time: float, text: str) -> None:
        shape = wire.content(2, wire.integer(1, 1))
        tensor = wire.integer(1, _STRING) + wire.content(2, shape) + wire.text(8, text)
        value = wire.text(_TAG, name) + wire.content(_TENSOR, tensor) + wire.content(_METADATA, _plugin("text", b""))
        self._value(time, step, value)

    def settings(self, time: float, values: dict[str, Setting]) -> None:
        started = b"".join(
            wire.content(1, wire.text(1, name) + wire.content(2, _setting(value))) for name, value in values.items()
        )
        metadata = _plugin("hparams", wire.content(3, started + wire.double(5, time)))
        self._value(time, 0, wire.text(_TAG, _SETTINGS_TAG) + wire.content(_METADATA, metadata))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def _value(self, time: float, step: int, value: bytes) -> None:
        self._write(time, step, wire.content(_SUMMARY, wire.content(1, value)))

    def _write(self, time: float, step: int, what: bytes) -> None:
        event = wire.double(_WALL_TIME, time) + wire.integer(_STEP, step) + what
        size = struct.pack("<Q", len(event))
        self.file.write(size + _checksum(size) + event + _checksum(event))


def read(file: Path) -> Log:
    """One event file, also one that is still written or was cut off. wire.Malformed: it is none."""
    log = Log()
    for record in _records(file):
        event = wire.Message(record)
        step, moment = event.integer(_STEP), event.number(_WALL_TIME)
        if _SESSION in event and event.message(_SESSION).integer(1) == _START:
            log.restart = step if log.restart is None else min(step, log.restart)
            log.forget_from(step)
        for value in event.message(_SUMMARY).messages(1):
            _take(log, value, step, moment)
    return log


def _take(log: Log, value: wire.Message, step: int, moment: float) -> None:
    name, plugin = value.text(_TAG), value.message(_METADATA).message(1)
    if _SIMPLE in value:
        log.scalars.setdefault(name, []).append(Point(step, moment, value.number(_SIMPLE)))
    elif _HISTOGRAM in value:
        found = value.message(_HISTOGRAM)
        limits, counts = found.numbers(_LIMITS, "<f8"), found.numbers(_COUNTS, "<f8")
        # The first bin has no lower limit; danlu's is as wide as the last one.
        first = min(found.number(1), -limits[-1]) if len(limits) else 0.0
        if len(limits) == len(counts) and len(limits):
            log.histograms.setdefault(name, []).append(Spread(step, moment, np.concatenate(([first], limits)), counts))
    elif _TENSOR in value:
        tensor = value.message(_TENSOR)
        kind = tensor.integer(1)
        if kind == _STRING:
            log.texts.append((step, moment, name, tensor.text(8)))
        elif kind in (_FLOAT, _DOUBLE):
            form, field = ("<f4", 5) if kind == _FLOAT else ("<f8", 6)
            numbers = tensor.numbers(4, form) if 4 in tensor else tensor.numbers(field, form)
            if len(numbers) == 1:
                log.scalars.setdefault(name, []).append(Point(step, moment, float(numbers[0])))
            elif plugin.text(1) == "histograms" and len(numbers) and len(numbers) % 3 == 0:
                left, right, counts = numbers.reshape(-1, 3).T
                log.histograms.setdefault(name, []).append(Spread(step, moment, np.append(left, right[-1]), counts))
    elif plugin.text(1) == "hparams" and name == _SETTINGS_TAG:
        for entry in plugin.message(2).message(3).messages(1):
            log.settings |= _read_setting(entry.text(1), entry.message(2))


def _records(file: Path) -> Iterator[bytes]:
    """Framed records up to the end, or up to one that is not whole. Of the checksums those of the lengths are looked at."""
    with file.open("rb") as stream:
        while len(head := stream.read(12)) == 12:
            if head[8:] != _checksum(head[:8]):
                raise wire.Malformed("not a record")
            (size,) = struct.unpack("<Q", head[:8])
            record = stream.read(size)
            if len(record) < size or len(stream.read(4)) < 4:
                return
            yield record


def _plugin(name: str, told: bytes) -> bytes:
    return wire.content(1, wire.text(1, name) + wire.content(2, told))


def _setting(value: Setting) -> bytes:
    """A google.protobuf.Value."""
    if isinstance(value, bool):
        return wire.integer(4, value)
    return wire.text(3, value) if isinstance(value, str) else wire.double(2, value)


def _read_setting(name: str, value: wire.Message) -> dict[str, Setting]:
    if 2 in value:
        return {name: value.number(2)}
    if 3 in value:
        return {name: value.text(3)}
    return {name: bool(value.integer(4))} if 4 in value else {}


def _crc_table() -> list[int]:
    """CRC-32C, Castagnoli's polynomial, bits reflected (RFC 3720, appendix B.4)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def _checksum(data: bytes) -> bytes:
    """TensorFlow's masked CRC."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
