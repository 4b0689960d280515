"""A few weights of every parameter, read in one copy from the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from danlu.engines.base import SAMPLED
from danlu.engines.torch.pieces import local


@torch.no_grad()
def samples(parameters: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Up to SAMPLED weights of this process's piece of each parameter, evenly spread, always the same ones."""
    pieces = {name: _spread(local(parameter)) for name, parameter in parameters.items()}
    if not pieces:
        return {}
    together = torch.cat([piece.float() for piece in pieces.values()]).cpu().numpy()
    ends = np.cumsum([piece.numel() for piece in pieces.values()])
    return dict(zip(pieces, np.split(together, ends[:-1]), strict=True))


def _spread(piece: Tensor) -> Tensor:
    flat = piece.detach().reshape(-1)
    if not flat.numel():
        return flat
    # An odd stride does not stay in one column of a matrix whose width is a power of two.
    stride = max(1, flat.numel() // SAMPLED) | 1
    return flat[::stride][:SAMPLED]
