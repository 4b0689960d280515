"""How parallelism and memory techniques are put on the model from the outside, one call each."""

from __future__ import annotations

import warnings

import paddle
from paddle import nn

from danlu.engines.paddle import auto_parallel, lora, recompute, tensor_parallel
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.dropout import Dropout
from danlu.engines.paddle.layout import Layout
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe


def parallelise(shape: ModelShape, recipe: Recipe, layout: Layout, layers: range) -> CausalLM:
    """This process's part of some layers of the model, with weights of no account yet.

    The order matters: tensor parallelism splits matrices, and with them their adapters; recomputation wraps what is left of each
    layer; compilation sees all of that.
    """
    nn.initializer.set_global_initializer(nn.initializer.Constant(0.0))  # nothing is drawn that is overwritten
    model = CausalLM(auto_parallel.filled(shape, layout) if layout.auto else shape, layers)
    if layout.tensor > 1 and not layout.auto:
        tensor_parallel.apply(model, shape, layout, layout.sequence_parallel)
    if recipe.train.lora is not None:
        lora.apply(model, recipe.train.lora, layout)
    if layout.auto:
        auto_parallel.apply(model, shape, layout)
    nn.initializer.set_global_initializer(None)
    if recipe.train.dropout:
        kind = auto_parallel.Dropout if layout.auto else Dropout
        part = layout.tensor_rank if layout.sequence_parallel else 0
        model.model.set_dropout(kind(recipe.train.dropout, recipe.train.seed, part))
    if recipe.train.lora is not None:
        lora.freeze(model, reach=recipe.memory.recompute != "none" or layout.pipeline > 1 or layout.zero_stage == 3)
    recompute.apply(model, recipe.memory.recompute, recipe.memory.recompute_every)
    if recipe.train.compile:
        warnings.filterwarnings("ignore", "Tensor do not have 'place'")  # of paddle's own functions
        model.model = paddle.jit.to_static(model.model, full_graph=True)
    return model
