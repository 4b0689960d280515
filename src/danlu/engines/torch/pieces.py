"""Between whole tensors and the pieces of them that this process holds."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

from danlu.engines.stored import Region
from danlu.engines.torch.layout import Layout

_CUTS = ("tensor", "shard")
"""Tensor parallelism cuts first and ZeRO cuts its piece again along the first dimension: the order in which they were applied."""


def own_region(parameter: Tensor) -> Region:
    """Which piece of the parameter, or of what is split as it is, this process holds."""
    region = [slice(0, size) for size in parameter.shape]
    for name in _CUTS:
        dim, count, rank = _cut(parameter, name)
        if dim is not None:
            region[dim] = _chunk(region[dim], count, rank)
    return tuple(region)


def written_region(parameter: Tensor, layout: Layout) -> Region | None:
    """Which part of the own piece this process writes: replicas of a piece share it out by rows. None: nothing of it.

    Needs no communication, and over all processes the regions cover the parameter once.
    """
    copies, number = 1, 0
    for name in ("replicate", *_CUTS):
        if _cut(parameter, name)[0] is None:
            size, place = layout.size(name), layout.place(name)
            copies, number = copies * size, number * size + place
    region = own_region(parameter)
    if not region:  # a number has no rows
        return region if number == 0 else None
    region = (_chunk(region[0], copies, number), *region[1:])
    return region if all(part.start < part.stop for part in region) else None


def _cut(parameter: Tensor, name: str) -> tuple[int | None, int, int]:
    """(dimension that is split along a mesh dimension or None, into how many, which of them is here)."""
    if not isinstance(parameter, DTensor):
        return None, 1, 0
    mesh, names = parameter.device_mesh, parameter.device_mesh.mesh_dim_names
    assert names is not None
    if name not in names:
        return None, 1, 0
    at = names.index(name)
    return getattr(parameter.placements[at], "dim", None), mesh.size(at), mesh.get_local_rank(name)


def _chunk(whole: slice, count: int, number: int) -> slice:
    """One of the parts that torch.chunk makes; those beyond the last row are empty."""
    size = -(-(whole.stop - whole.start) // count)
    return slice(min(whole.start + number * size, whole.stop), min(whole.start + (number + 1) * size, whole.stop))


def local(tensor: Tensor) -> Tensor:
    """The storage of this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy the own piece of a whole tensor into a parameter, a gradient or an optimizer state."""
    local(parameter).copy_(whole[own_region(parameter)])


def gather(value: Tensor) -> Tensor:
    """The whole tensor, on every rank that holds a piece of it; all of them must call."""
    return value.full_tensor() if isinstance(value, DTensor) else value
