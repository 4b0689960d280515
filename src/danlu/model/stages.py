"""Which layers go to which pipeline stage, balanced by what they cost to compute."""

from __future__ import annotations

from danlu.model.counts import parameter_parts
from danlu.model.shape import ModelShape


def split_layers(shape: ModelShape, stages: int) -> list[range]:
    """Consecutive layers for each stage, at least one each, such that the dearest stage is as cheap as can be.

    A layer costs its matrix parameters, and the last stage the output embedding on top (a look-up in the input embedding costs
    nothing). ValueError: more stages than layers.
    """
    if stages > shape.layers:
        raise ValueError(f"{stages} stages of {shape.layers} layers")
    parts = parameter_parts(shape)
    layer = (parts.attention + parts.mlp) / shape.layers
    head = shape.vocab_size * shape.hidden_size
    # With n layers on the last stage and the rest spread evenly over the others, the best n is found by trying each.
    if stages == 1:
        return [range(shape.layers)]

    def dearest(last: int) -> float:
        others = -(-(shape.layers - last) // (stages - 1))
        return max(others * layer, last * layer + head)

    last = min(range(1, shape.layers - stages + 2), key=lambda n: (dearest(n), -n))
    sizes = [(shape.layers - last) // (stages - 1) + (i < (shape.layers - last) % (stages - 1)) for i in range(stages - 1)] + [
        last
    ]
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
