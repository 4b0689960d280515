"""Checkpoints whose tensors lie in slices: each process writes those that it holds and reads those that it needs.
The format is told in danlu.engines.stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.paddle.fully_sharded import is_split, own_span, whole
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.pieces import is_turned, own_region, turned, written_region
from danlu.engines.stored import Region, Stored
from danlu.errors import UserError


class Slice(NamedTuple):
    """What a process writes of a tensor: the entries from ``offsets`` on, made when they are wanted."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.float32]]


def written(
    name: str, shape: tuple[int, ...], parameter: Tensor, layout: Layout, shared: bool, of: Tensor | None = None
) -> Slice | None:
    """What this process writes of what it holds of a parameter, or ``of`` a moment, of that shape in files.

    ``shared``: data ranks hold the same. Where they split the parameter, all call, for each in the same order: a part that is to
    be written is gathered and copied at once.
    """
    region = written_region(name, shape, layout, shared)
    piece = whole(parameter, layout, of)
    if region is None:
        return None
    own = own_region(name, shape, layout)
    within = tuple(slice(part.start - mine.start, part.stop - mine.start) for part, mine in zip(region, own, strict=True))
    offsets, sizes = tuple(part.start for part in region), tuple(part.stop - part.start for part in region)
    if is_split(parameter):
        made = array_of(name, piece)[within].copy()
        return Slice(offsets, sizes, lambda: made)
    return Slice(offsets, sizes, lambda: np.ascontiguousarray(array_of(name, piece)[within]))


def written_number(name: str, number: int, layout: Layout, shared: bool) -> Slice | None:
    """A number that goes with a tensor, from the first of those that hold it."""
    first = (not shared or layout.data_rank == 0) and layout.tensor_rank == 0
    return Slice((), (), lambda: np.asarray(number, np.float32)) if first else None


class Target:
    """A tensor that is to be filled from the files."""

    def __init__(self, name: str, region: Region) -> None:
        """``region`` is which part of the file's tensor of that name."""
        self.name, self.region = name, region
        self.array: NDArray[np.float32] = np.empty([part.stop - part.start for part in region], np.float32)
        self.left = self.array.size
        """Entries that are not filled yet."""

    def take(self, found: Stored) -> NDArray[np.float32] | None:
        """Copy what belongs here, converted to FP32; returns the entries that were filled, or None."""
        if (overlap := found.overlap(self.region)) is None:
            return None
        filled = self.array[overlap[0]]
        filled[...] = found.content[overlap[1]]
        self.left -= filled.size
        return filled

    def differs(self, found: Stored) -> bool:
        """Whether an entry that belongs here is another than the one that is here."""
        overlap = found.overlap(self.region)
        if overlap is None:
            return False
        return not np.array_equal(self.array[overlap[0]], found.content[overlap[1]].astype(np.float32))

    def give(self, parameter: Tensor, layout: Layout) -> None:
        """Copy into a parameter."""
        give(self.name, parameter, self.array, layout)


def check_filled(targets: Iterable[Target], folder: Path) -> None:
    """UserError: the files of a folder did not hold all of a tensor."""
    for target in targets:
        if target.left:
            raise UserError(f"{folder}: {target.left:,} entries of {target.name} are in no file; the checkpoint is not complete")


def array_of(name: str, tensor: Any) -> NDArray[np.float32]:
    """A copy of a parameter, or of what has its shape, as files have it."""
    return np.ascontiguousarray(turned(name, tensor.numpy()), np.float32)


def fill(name: str, parameter: Tensor, whole: NDArray[np.float32], layout: Layout) -> None:
    """Copy the own piece of a whole tensor, as files have it, into a parameter."""
    give(name, parameter, whole[held_region(name, parameter, whole.shape, layout)], layout)


def held_region(name: str, parameter: Tensor, shape: tuple[int, ...], layout: Layout) -> Region:
    """The smallest region of a file's tensor with all that is kept here of it: with ZeRO 3 a run of the parameter's entries."""
    region = list(own_region(name, shape, layout))
    axis = len(region) - 1 if is_turned(name, len(region)) else 0
    rows, mine = _rows(parameter, layout), region[axis]
    region[axis] = slice(min(mine.start + rows.start, mine.stop), min(mine.start + rows.stop, mine.stop))
    return tuple(region)


def _rows(parameter: Tensor, layout: Layout) -> slice:
    """Which rows of a parameter have an entry here."""
    span, row = own_span(parameter, layout), math.prod(parameter.shape[1:])
    return slice(span.start // row, -(-span.stop // row))


def give(name: str, parameter: Tensor, piece: NDArray[np.float32], layout: Layout) -> None:
    """Copy a piece of a file's tensor, that of its ``held_region``, into a parameter."""
    (parameter.fw_storage if is_split(parameter) else parameter).set_value(placed(name, parameter, piece, layout))


def placed(name: str, parameter: Tensor, piece: NDArray[np.float32], layout: Layout) -> NDArray[np.float32]:
    """A piece of a file's tensor, that of its ``held_region``, as this process keeps the parameter; filled up with zeros."""
    made, rows = turned(name, piece), _rows(parameter, layout)
    shape = [rows.stop - rows.start, *parameter.shape[1:]]
    made = np.pad(made, [(0, size - here) for size, here in zip(shape, made.shape, strict=True)])
    if not is_split(parameter):
        return np.ascontiguousarray(made)
    span, before = own_span(parameter, layout), rows.start * math.prod(parameter.shape[1:])
    run = made.reshape(-1)[span.start - before : span.stop - before]
    return np.pad(run, (0, parameter.fw_storage.shape[0] - run.size))
