"""Checkpoints whose tensors lie in slices: each process writes those that it holds and reads those that it needs.
The format is told in danlu.engines.stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from danlu.engines.stored import Stored, header_of, told_offsets
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.pieces import local, own_region, written_region
from danlu.engines.torch.safetensors_file import write_file
from danlu.errors import UserError


class Slice(NamedTuple):
    """What a process writes of a tensor: the entries from ``offsets`` on."""

    offsets: tuple[int, ...]
    tensor: Tensor


def written_slices(tensors: Iterable[tuple[str, Tensor, Tensor]], layout: Layout) -> dict[str, Slice]:
    """What this process writes of tensors, by name; nothing is copied.

    Each comes with a parameter that is split as it is, and its own piece, which may be anywhere: (name, parameter, piece).
    """
    found = {}
    for name, parameter, piece in tensors:
        whole, own = written_region(parameter, layout), own_region(parameter)
        if whole is not None:
            within = tuple(slice(part.start - mine.start, part.stop - mine.start) for part, mine in zip(whole, own, strict=True))
            found[name] = Slice(tuple(part.start for part in whole), piece.detach()[within])
    return found


def write_slices(slices: Mapping[str, Slice], file: Path) -> None:
    """One file of slices. OSError: the disk is full, or another failed write."""
    offsets = header_of({name: each.offsets for name, each in slices.items()})
    write_file({name: each.tensor for name, each in slices.items()}, file, offsets)


def stored(files: Iterable[Path]) -> Iterator[Stored]:
    """What lies in files, one file open at a time. UserError: one is cut off or no safetensors file."""
    for file in files:
        try:
            with safe_open(file, framework="pt") as reader:
                told = told_offsets(file, reader.metadata() or {})
                for name in reader.keys():  # noqa: SIM118 - not a dict
                    content = reader.get_slice(name)
                    shape = tuple(content.get_shape())
                    offsets = told.get(name, (0,) * len(shape))
                    yield Stored(file, name, offsets, shape, content.get_dtype(), content)
        except SafetensorError as error:
            raise UserError(f"{file}: not a complete safetensors file ({error})") from error


class Target:
    """A piece of a tensor that is to be filled from the files."""

    def __init__(self, name: str, parameter: Tensor, piece: Tensor | None = None) -> None:
        """``piece`` is split as the parameter is; None: the parameter's own."""
        self.name, self.region = name, own_region(parameter)
        self.piece = local(parameter) if piece is None else piece
        self.left = self.piece.numel()
        """Entries that are not filled yet."""

    def take(self, found: Stored) -> Tensor | None:
        """Copy what belongs here, converted to the type of the piece; returns the entries that were filled, or None."""
        if (overlap := found.overlap(self.region)) is None:
            return None
        filled = self.piece[overlap[0]].copy_(found.content[overlap[1]])
        self.left -= filled.numel()
        return filled

    def differs(self, found: Stored) -> bool:
        """Whether an entry that belongs here is another than the one that is here."""
        if (overlap := found.overlap(self.region)) is None:
            return False
        here = self.piece[overlap[0]]
        return not torch.equal(here, found.content[overlap[1]].to(here))


def check_filled(targets: Iterable[Target], folder: Path) -> None:
    """UserError: the files of a folder did not hold all of a tensor."""
    for target in targets:
        if target.left:
            raise UserError(f"{folder}: {target.left:,} entries of {target.name} are in no file; the checkpoint is not complete")
