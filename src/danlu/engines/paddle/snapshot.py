"""What a process writes of a checkpoint, in the very format of the torch engine; docs/checkpoints.md tells it.

There is no random state in it: initial weights and dropout are functions of the seed, and sampling has a generator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from danlu.engines.hugging_face import split_files, write_index
from danlu.engines.paddle.safetensors_file import Written, stored, write_file
from danlu.engines.stored import Stored

OPTIMIZER = "optimizer-{:05d}.safetensors"
"""By the rank of the process that wrote it."""
_RANDOM = "random."

Lazy = Callable[[], NDArray[np.float32]]
"""What makes an array when it is wanted."""


class Buffers:
    """Host memory that one save after the other is copied to."""

    def __init__(self) -> None:
        self.held: dict[str, NDArray[np.float32]] = {}

    def copy(self, arrays: Mapping[str, Lazy]) -> dict[str, Lazy]:
        """The arrays as they are now; valid until the next copy of the same names."""
        for name, make in arrays.items():
            made = make()
            if name in self.held:
                self.held[name][...] = made
            else:
                self.held[name] = made
        return {name: lambda held=self.held[name]: held for name in arrays}  # type: ignore[misc]


def write(
    weights: Mapping[str, Lazy], states: Mapping[str, Lazy], sizes: Mapping[str, int], folder: Path, rank: int
) -> list[Path]:
    """The files of one process; returns them. OSError: the disk is full, or another failed write."""
    files = split_files(sizes)
    for file, names in files.items():
        write_file({name: Written("F32", weights[name]()) for name in names}, folder / file)
    optimizer = folder / OPTIMIZER.format(rank)
    write_file({name: Written("F32", make()) for name, make in states.items()}, optimizer)
    return [*write_index(files, sizes, folder), optimizer]


def optimizer_states(folder: Path) -> Iterator[Stored]:
    """The optimizer states of a checkpoint. UserError: a file is cut off."""
    files = sorted(folder.glob("optimizer-*.safetensors"))
    return (found for found in stored(files) if not found.name.startswith(_RANDOM))
