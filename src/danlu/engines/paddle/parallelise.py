"""How parallelism and memory techniques are put on the model from the outside, one call each."""

from __future__ import annotations

import warnings

import paddle
from paddle import nn

from danlu.engines.paddle import recompute, tensor_parallel
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
    model = CausalLM(shape, layers)
    if layout.tensor > 1:
        tensor_parallel.apply(model, shape, layout, layout.sequence_parallel)
    nn.initializer.set_global_initializer(None)
    if recipe.train.dropout:
        part = layout.tensor_rank if layout.sequence_parallel else 0
        model.model.set_dropout(Dropout(recipe.train.dropout, recipe.train.seed, part))
    recompute.apply(model, recipe.memory.recompute, recipe.memory.recompute_every)
    if recipe.train.compile:
        warnings.filterwarnings("ignore", "Tensor do not have 'place'")  # of paddle's own functions
        model.model = paddle.jit.to_static(model.model, full_graph=True)
    return model
