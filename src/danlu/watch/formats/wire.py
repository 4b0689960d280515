"""Protocol buffers on the wire (https://protobuf.dev/programming-guides/encoding/): as much as event files need."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes that are no message."""


# --- writing -----------------------------------------------------------------------------------------------------------------


def integer(field: int, value: int) -> bytes:
    """An int64, also a negative one, or an enum or bool."""
    return _varint(field << 3 | _VARINT) + _varint(value & (1 << 64) - 1)


def double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _DOUBLE) + struct.pack("<d", value)


def single(field: int, value: float) -> bytes:
    """A float32; what is larger than it can hold becomes infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(field << 3 | _FLOAT) + packed


def content(field: int, value: bytes) -> bytes:
    """Bytes, or a message inside."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return content(field, value.encode())


def doubles(field: int, values: Sequence[float] | npt.NDArray[np.float64]) -> bytes:
    """A packed list."""
    return content(field, np.asarray(values, dtype="<f8").tobytes())


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


# --- reading -----------------------------------------------------------------------------------------------------------------


class Message:
    """The fields of a message: each is an int, a float or bytes by what is on the wire, in the order in which they stand."""

    def __init__(self, data: bytes) -> None:
        """Malformed: it is none."""
        self.fields: dict[int, list[Any]] = {}
        try:
            for field, value in _fields(data):
                self.fields.setdefault(field, []).append(value)
        except (IndexError, struct.error) as error:
            raise Malformed(str(error)) from None

    def __contains__(self, field: int) -> bool:
        return field in self.fields

    def integer(self, field: int) -> int:
        """Signed; 0 where it is left out."""
        value: int = self._last(field, int, 0)
        return value - (1 << 64) if value >> 63 else value

    def number(self, field: int) -> float:
        """A float or double; 0 where it is left out."""
        value: float = self._last(field, float, 0.0)
        return value

    def content(self, field: int) -> bytes:
        value: bytes = self._last(field, bytes, b"")
        return value

    def text(self, field: int) -> str:
        return self.content(field).decode(errors="replace")

    def messages(self, field: int) -> list[Message]:
        return [Message(each) for each in self.fields.get(field, []) if isinstance(each, bytes)]

    def message(self, field: int) -> Message:
        return Message(self.content(field))

    def numbers(self, field: int, kind: str) -> npt.NDArray[np.float64]:
        """A list of ``<f8`` or ``<f4``, packed or not. Malformed: packed bytes that hold no whole number of them."""
        parts: list[Any] = []
        for each in self.fields.get(field, []):
            if isinstance(each, bytes) and len(each) % np.dtype(kind).itemsize:
                raise Malformed(f"{len(each)} bytes are no list of {kind}")
            parts.append(np.frombuffer(each, dtype=kind) if isinstance(each, bytes) else np.array([each]))
        return np.concatenate(parts).astype(np.float64) if parts else np.empty(0)

    def _last(self, field: int, kind: type, default: Any) -> Any:
        value = self.fields.get(field, [default])[-1]
        if not isinstance(value, kind):
            raise Malformed(f"field {field} is no {kind.__name__}")
        return value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield field, value
        elif kind == _DOUBLE:
            yield field, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif kind == _FLOAT:
            yield field, struct.unpack_from("<f", data, at)[0]
            at += 4
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise IndexError("a field ends behind its message")
            yield field, data[at : at + size]
            at += size
        else:
            raise IndexError(f"wire type {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")
