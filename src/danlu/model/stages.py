"""Which layers go to which pipeline stage, balanced by what they cost to compute."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from danlu.model.counts import parameter_parts
from danlu.model.shape import ModelShape


def split_layers(shape: ModelShape, stages: int) -> list[range]:
    """Consecutive layers for each stage, at least one each, such that the dearest stage is as cheap as can be.

    A layer costs its matrix parameters, and the last stage the output embedding on top (a look-up in the input embedding costs
    nothing). ValueError: more stages than layers.
    """
    parts = parameter_parts(shape)
    layer = (parts.attention + parts.mlp) / shape.layers
    sizes = split(shape.layers, stages, layer, shape.vocab_size * shape.hidden_size)
    starts = [sum(sizes[:i]) for i in range(stages + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


@lru_cache(maxsize=4096)
def split(layers: int, stages: int, layer: float, head: float) -> tuple[int, ...]:
    """Layers of each stage, where a layer costs `layer` and the last stage `head` on top. ValueError: too many stages."""
    if stages > layers:
        raise ValueError(f"{stages} stages of {layers} layers")
    # With n layers on the last stage and the rest spread evenly over the others, the best n is found by trying each.
    if stages == 1:
        return (layers,)

    def dearest(last: int) -> float:
        others = -(-(layers - last) // (stages - 1))
        return max(others * layer, last * layer + head)

    last = min(range(1, layers - stages + 2), key=lambda n: (dearest(n), -n))
    even, rest = divmod(layers - last, stages - 1)
    return (*(even + (i < rest) for i in range(stages - 1)), last)
