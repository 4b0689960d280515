"""Between whole tensors and the pieces of them that this process holds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def own_piece(whole: Tensor, parameter: Tensor) -> Tensor:
    """This process's piece of a whole tensor that is split as the parameter is.

    Tensor parallelism cuts first and ZeRO cuts its piece again along the first dimension, each as torch.chunk does: the order in
    which they were applied.
    """
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names
    assert names is not None
    for name in ("tensor", "shard"):
        if name in names and mesh.size(names.index(name)) > 1:
            dim = getattr(parameter.placements[names.index(name)], "dim", None)
            if dim is not None:
                pieces = torch.chunk(whole, mesh.size(names.index(name)), dim)
                rank = mesh.get_local_rank(name)
                whole = pieces[rank] if rank < len(pieces) else whole.narrow(dim, 0, 0)
    return whole


def local(tensor: Tensor) -> Tensor:
    """The storage of this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy the own piece of a whole tensor into a parameter, a gradient or an optimizer state."""
    local(parameter).copy_(own_piece(whole, parameter))


def gather(value: Tensor) -> Tensor:
    """The whole tensor, on every rank that holds a piece of it; all of them must call."""
    return value.full_tensor() if isinstance(value, DTensor) else value
