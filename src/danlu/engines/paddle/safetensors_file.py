"""Safetensors files through numpy: written tensor by tensor, and read as maps of the file.

The format: eight bytes with the length of a JSON header, the header (type, shape and place of each tensor), then the bytes of the
tensors one after another. The library's own reader for paddle ends the process when a tensor of it is released (safetensors
0.8 with paddle 3.3), and numpy has no bf16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from danlu.engines.stored import Region, Stored, told_offsets
from danlu.errors import UserError
from danlu.pace import chunks

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
"""Those whose content is read; of others the head tells enough."""
_MOST_HEADER = 100 << 20


class Written(NamedTuple):
    """A tensor for a file: the bytes of an array, and what they are (BF16 comes as uint16)."""

    dtype: str
    array: NDArray[Any]


def bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the nearest, ties to even. Infinities stay; a NaN stays one."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def write_file(tensors: Mapping[str, Written], file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """One file. OSError: the disk is full, or another failed write."""
    # Wide types first, so that every tensor begins at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].array.itemsize, item[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, (dtype, array) in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with file.open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for _, (_, array) in ordered:
                content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                for piece in chunks(len(content)):
                    stream.write(content[piece])
    except OSError as error:
        error.filename = error.filename or str(file)  # a failed write leaves it out
        raise


class Content:
    """A tensor in a file; parts of it are read when asked for, as FP32, or as they are where they are integers or FP64."""

    def __init__(self, file: Path, dtype: str, shape: tuple[int, ...], begin: int) -> None:
        self.file, self.dtype, self.shape, self.begin = file, dtype, shape, begin

    def __getitem__(self, region: Region | tuple[()]) -> NDArray[Any]:
        kind = np.dtype(_TYPES[self.dtype])
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, kind)[region]
        part = np.memmap(self.file, kind, "r", self.begin, self.shape)[region]
        if self.dtype == "BF16":
            return (part.astype(np.uint32) << 16).view(np.float32)
        return part.astype(np.float32) if self.dtype == "F16" else part


def stored(files: Iterable[Path]) -> Iterator[Stored]:
    """What lies in files. UserError: one is cut off or no safetensors file."""
    for file in files:
        header, start = _header(file)
        told = told_offsets(file, header.pop("__metadata__", None) or {})
        for name, each in header.items():
            try:
                shape, dtype, begin = tuple(map(int, each["shape"])), str(each["dtype"]), start + int(each["data_offsets"][0])
                end = start + int(each["data_offsets"][1])
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise _damaged(file, f"{name}: {error!r}") from error
            size = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize if dtype in _TYPES else end - begin
            if begin < start or end - begin != size or end > file.stat().st_size:
                raise _damaged(file, f"{name} should end at byte {end}")
            yield Stored(file, name, told.get(name, (0,) * len(shape)), shape, dtype, Content(file, dtype, shape, begin))


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the bytes of the tensors begin."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_MOST_HEADER, file.stat().st_size - 8):
            raise _damaged(file, "it ends within its header")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise _damaged(file, str(error)) from error
    if not isinstance(header, dict):
        raise _damaged(file, "its header is no JSON object")
    return header, 8 + length


def _damaged(file: Path, why: str) -> UserError:
    return UserError(f"{file}: not a complete safetensors file ({why})")
