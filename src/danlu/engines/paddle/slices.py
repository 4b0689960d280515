"""Checkpoints whose tensors lie in slices: each process writes those that it holds and reads those that it needs.
The format is told in danlu.engines.stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.pieces import own_region, turned, written_region
from danlu.engines.stored import Region, Stored
from danlu.errors import UserError


class Slice(NamedTuple):
    """What a process writes of a tensor: the entries from ``offsets`` on, made when they are wanted."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.float32]]


def written(name: str, shape: tuple[int, ...], piece: Tensor, layout: Layout, shared: bool) -> Slice | None:
    """What this process writes of what it holds of a tensor of that shape; ``shared``: data ranks hold the same."""
    region = written_region(name, shape, layout, shared)
    if region is None:
        return None
    own = own_region(name, shape, layout)
    within = tuple(slice(part.start - mine.start, part.stop - mine.start) for part, mine in zip(region, own, strict=True))
    return Slice(
        tuple(part.start for part in region),
        tuple(part.stop - part.start for part in region),
        lambda: np.ascontiguousarray(array_of(name, piece)[within]),
    )


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

    def give(self, parameter: Tensor) -> None:
        """Copy into a parameter."""
        parameter.set_value(placed(self.name, self.array, parameter))


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
    parameter.set_value(placed(name, whole[own_region(name, whole.shape, layout)], parameter))


def placed(name: str, piece: NDArray[np.float32], parameter: Tensor) -> NDArray[np.float32]:
    """A piece of a file's tensor with the axes of its parameter, filled up with zeros to its shape."""
    made = turned(name, piece)
    filling = [(0, size - here) for size, here in zip(parameter.shape, made.shape, strict=True)]
    return np.ascontiguousarray(np.pad(made, filling))
