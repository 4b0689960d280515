"""Checkpoints whose tensors lie in slices: each process writes those that it holds and reads those that it needs.

A file of slices is a safetensors file; its header says where each slice begins in the whole tensor, in the words of
``torch.distributed.checkpoint``, whose reader for Hugging Face files reads these too. A file without them holds whole tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from danlu.engines.torch.layout import Layout
from danlu.engines.torch.pieces import Region, local, own_region, written_region
from danlu.engines.torch.safetensors_file import write_file
from danlu.errors import UserError

_OFFSETS, _VERSION = "DCP_SHARDING_INFO", {"DCP_VERSION": "1.0"}


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
    offsets = {name: {"saved_offsets": each.offsets} for name, each in slices.items()}
    write_file({name: each.tensor for name, each in slices.items()}, file, {_OFFSETS: json.dumps(offsets), **_VERSION})


class Stored(NamedTuple):
    """A slice, or a whole tensor, in an open file."""

    file: Path
    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    """As safetensors have it: F32, BF16, ..."""
    content: Any
    """What the library gives out parts of; read from the disk when they are used."""

    def overlap(self, region: Region) -> tuple[Region, Region] | None:
        """Where the part that lies in a region of the whole tensor is in a piece that fills it, and where in here; or None."""
        ours, theirs = [], []
        for part, offset, size in zip(region, self.offsets, self.shape, strict=True):
            start, stop = max(part.start, offset), min(part.stop, offset + size)
            if start >= stop:
                return None
            ours.append(slice(start - part.start, stop - part.start))
            theirs.append(slice(start - offset, stop - offset))
        return tuple(ours), tuple(theirs)


def stored(files: Iterable[Path]) -> Iterator[Stored]:
    """What lies in files, one file open at a time. UserError: one is cut off or no safetensors file."""
    for file in files:
        try:
            with safe_open(file, framework="pt") as reader:
                told = _offsets(file, reader.metadata() or {})
                for name in reader.keys():  # noqa: SIM118 - not a dict
                    content = reader.get_slice(name)
                    shape = tuple(content.get_shape())
                    offsets = told.get(name, (0,) * len(shape))
                    yield Stored(file, name, offsets, shape, content.get_dtype(), content)
        except SafetensorError as error:
            raise UserError(f"{file}: not a complete safetensors file ({error})") from error


def _offsets(file: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    try:
        told = json.loads(metadata.get(_OFFSETS, "{}"))
        return {name: tuple(int(offset) for offset in each["saved_offsets"]) for name, each in told.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: where its slices belong cannot be read ({type(error).__name__}: {error})") from error


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
