"""A few weights of every parameter, read in one copy from the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
from paddle import Tensor

from danlu.engines.base import SAMPLED
from danlu.engines.paddle.fully_sharded import held
from danlu.engines.paddle.layout import Layout


@paddle.no_grad()
def samples(parameters: Mapping[str, Tensor], layout: Layout) -> dict[str, np.ndarray]:
    """Up to SAMPLED weights of what is here of each parameter, evenly spread, always the same ones."""
    pieces = {name: _spread(held(parameter, layout)) for name, parameter in parameters.items()}
    together = paddle.concat([piece.astype("float32") for piece in pieces.values()]).numpy()
    ends = np.cumsum([piece.size for piece in pieces.values()])
    return dict(zip(pieces, np.split(together, ends[:-1]), strict=True))


def _spread(parameter: Tensor) -> Tensor:
    flat = parameter.detach().flatten()
    # An odd stride does not stay in one column of a matrix whose width is a power of two.
    stride = max(1, flat.size // SAMPLED) | 1
    return flat[::stride][:SAMPLED]
