"""Tensors, or slices of them, in safetensors files: which part of the whole each is. No framework.

A file of slices says in its header where each begins in the whole tensor, in the words of ``torch.distributed.checkpoint``, whose
reader for Hugging Face files reads these too. A file without that holds whole tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from danlu.errors import UserError

Region = tuple[slice, ...]
"""Where a piece lies in the whole tensor: a slice with start and stop for each dimension."""
_OFFSETS, _VERSION = "DCP_SHARDING_INFO", {"DCP_VERSION": "1.0"}


class Stored(NamedTuple):
    """A slice, or a whole tensor, in an open file."""

    file: Path
    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    """As safetensors have it: F32, BF16, ..."""
    content: Any
    """What gives out parts, as the engine has its tensors; read from the disk when they are used."""

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


def told_offsets(file: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Where the slices of a file begin, by name, from its header. UserError: that cannot be read."""
    try:
        told = json.loads(metadata.get(_OFFSETS, "{}"))
        return {name: tuple(int(offset) for offset in each["saved_offsets"]) for name, each in told.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: where its slices belong cannot be read ({type(error).__name__}: {error})") from error


def header_of(offsets: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The reverse of ``told_offsets``."""
    return {_OFFSETS: json.dumps({name: {"saved_offsets": each} for name, each in offsets.items()}), **_VERSION}
