"""What a process writes of a checkpoint, in the very format of the torch engine; docs/checkpoints.md tells it.

One process leaves the weights in the Hugging Face layout, several leave slices of them.
There is no random state in it: initial weights and dropout are functions of the seed, and sampling has a generator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from danlu.engines.hugging_face import split_files, write_index
from danlu.engines.paddle.safetensors_file import Written, stored, write_file
from danlu.engines.paddle.slices import Slice
from danlu.engines.stored import Stored, header_of

WEIGHTS, OPTIMIZER = "weights-{:05d}.safetensors", "optimizer-{:05d}.safetensors"
"""By the rank of the process that wrote it."""
_RANDOM = "random."


class Buffers:
    """Host memory that one save after the other is copied to."""

    def __init__(self) -> None:
        self.held: dict[str, NDArray[np.float32]] = {}

    def copy(self, slices: Mapping[str, Slice]) -> dict[str, Slice]:
        """The slices as they are now; valid until the next copy of the same names."""
        return {name: each._replace(make=self._kept(name, each)) for name, each in slices.items()}

    def _kept(self, name: str, each: Slice) -> Callable[[], NDArray[np.float32]]:
        made = each.make()
        if name in self.held and self.held[name].shape == made.shape:
            self.held[name][...] = made
        else:
            self.held[name] = made
        held = self.held[name]
        return lambda: held


def write(weights: Mapping[str, Slice], states: Mapping[str, Slice], folder: Path, rank: int, alone: bool) -> list[Path]:
    """The files of one process; returns them. OSError: the disk is full, or another failed write."""
    optimizer = folder / OPTIMIZER.format(rank)
    if alone:
        sizes = {name: 4 * math.prod(each.shape) for name, each in weights.items()}
        files = split_files(sizes)
        for file, names in files.items():
            write_file({name: Written("F32", weights[name].make()) for name in names}, folder / file)
        paths = write_index(files, sizes, folder)
        write_file({name: Written("F32", each.make()) for name, each in states.items()}, optimizer)
    else:
        paths = [folder / WEIGHTS.format(rank)]
        _write_slices(weights, paths[0])
        _write_slices(states, optimizer)
    return [*paths, optimizer]


def _write_slices(slices: Mapping[str, Slice], file: Path) -> None:
    offsets = header_of({name: each.offsets for name, each in slices.items()})
    write_file({name: Written("F32", each.make()) for name, each in slices.items()}, file, offsets)


def optimizer_states(folder: Path) -> Iterator[Stored]:
    """The optimizer states of a checkpoint. UserError: a file is cut off."""
    files = sorted(folder.glob("optimizer-*.safetensors"))
    return (found for found in stored(files) if not found.name.startswith(_RANDOM))
