"""Checkpoints whose tensors lie in slices: what this process takes of them. See danlu.engines.stored for the format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.paddle.pieces import turned
from danlu.engines.stored import Stored
from danlu.errors import UserError


class Target:
    """A tensor that is to be filled from the files."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        """``name`` and ``shape`` are the file's."""
        self.name = name
        self.array: NDArray[np.float32] = np.empty(shape, np.float32)
        self.left = self.array.size
        """Entries that are not filled yet."""

    def take(self, found: Stored) -> NDArray[np.float32] | None:
        """Copy what belongs here, converted to FP32; returns the entries that were filled, or None."""
        if (overlap := found.overlap(tuple(slice(0, size) for size in self.array.shape))) is None:
            return None
        filled = self.array[overlap[0]]
        filled[...] = found.content[overlap[1]]
        self.left -= filled.size
        return filled

    def differs(self, found: Stored) -> bool:
        """Whether an entry that belongs here is another than the one that is here."""
        overlap = found.overlap(tuple(slice(0, size) for size in self.array.shape))
        if overlap is None:
            return False
        return not np.array_equal(self.array[overlap[0]], found.content[overlap[1]].astype(np.float32))

    def give(self, parameter: Tensor) -> None:
        """Copy into a parameter."""
        parameter.set_value(np.ascontiguousarray(turned(self.name, self.array)))


def check_filled(targets: Iterable[Target], folder: Path) -> None:
    """UserError: the files of a folder did not hold all of a tensor."""
    for target in targets:
        if target.left:
            raise UserError(f"{folder}: {target.left:,} entries of {target.name} are in no file; the checkpoint is not complete")


def array_of(name: str, tensor: Any) -> NDArray[np.float32]:
    """A copy of a parameter, or of what has its shape, as files have it."""
    return np.ascontiguousarray(turned(name, tensor.numpy()), np.float32)
