"""How parallelism and memory techniques are put on the model from the outside, one call each."""

from __future__ import annotations

import warnings

import paddle
from paddle import nn

from danlu.engines.paddle import auto_parallel, recompute, tensor_parallel
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.dropout import Dropout
from danlu.engines.paddle.layout import Layout
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe


def parallelise(shape: ModelShape, recipe: Recipe, layout: Layout, layers: range) -> CausalLM:
    """This process's part of some layers of the model, with weights of no account yet.

    The order matters: tensor parallelism splits matrices; recomputation wraps what is left of each layer; compilation sees all
    of that.
    """
    nn.initializer.set_global_initializer(nn.initializer.Constant(0.0))  # nothing is drawn that is overwritten
    model = CausalLM(auto_parallel.filled(shape, layout) if layout.auto else shape, layers)
    if layout.auto:
        auto_parallel.apply(model, shape, layout)
    elif layout.tensor > 1:
        tensor_parallel.apply(model, shape, layout, layout.sequence_parallel)
    nn.initializer.set_global_initializer(None)
    if recipe.train.dropout:
        kind = auto_parallel.Dropout if layout.auto else Dropout
        part = layout.tensor_rank if layout.sequence_parallel else 0
        model.model.set_dropout(kind(recipe.train.dropout, recipe.train.seed, part))
    recompute.apply(model, recipe.memory.recompute, recipe.memory.recompute_every)
    if recipe.train.compile:
        warnings.filterwarnings("ignore", "Tensor do not have 'place'")  # of paddle's own functions
        model.model = paddle.jit.to_static(model.model, full_graph=True)
    return model
