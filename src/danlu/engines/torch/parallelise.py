"""How parallelism and memory techniques are put on the model from the outside, one call each."""

from __future__ import annotations

from pathlib import Path

import torch

from danlu.engines.torch import lora, pipeline, recompute, rounded, shard, tensor_parallel
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.dropout import Dropout, Keys
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.offload import materialise, parameters_place
from danlu.model import adapters
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe


def parallelise(shape: ModelShape, recipe: Recipe, layout: Layout, device: torch.device, ranges: list[range]) -> list[CausalLM]:
    """This process's part of the model, without storage yet: one module, or its pipeline stages.

    ``ranges`` are the layers of every stage of the pipeline.

    The order matters: the pipeline decides which layers are here; tensor parallelism splits their matrices; recomputation wraps
    what is left of each layer; compilation sees all of that; sharding comes last, since it hooks into the finished modules.
    """
    parallel = recipe.parallel
    with torch.device("meta"):
        whole = CausalLM(shape)
    if recipe.train.lora is not None:
        adapters.check(shape, recipe.train.lora.targets)
    stages = pipeline.cut(whole, ranges, layout) if layout.pipeline > 1 else [whole]
    for stage in stages:
        if layout.tensor > 1:
            tensor_parallel.apply(stage, layout.submesh("tensor"), parallel.sequence_parallel, shape.qk_norm)
            stage.tie()
        if recipe.train.lora is not None:
            if recipe.train.lora.base == "int8":
                rounded.apply(stage)
            lora.apply(stage, recipe.train.lora)
        if recipe.train.drops:
            stage.model.keys = Keys(recipe.train.seed)
        if recipe.train.dropout:
            part = layout.tensor_rank if parallel.sequence_parallel else 0
            stage.model.set_dropout(Dropout(recipe.train.dropout, part))
        recompute.apply(stage, recipe.memory.recompute, recipe.memory.recompute_every)
        if recipe.train.compile:
            _compile(stage, whole=layout.mesh is None)
        if layout.data > 1:
            shard.apply(stage, layout, parallel.zero_stage, on_host=parameters_place(recipe, device) != "none")
    return stages


def allocate(stages: list[CausalLM], shape: ModelShape, recipe: Recipe, device: torch.device, offload: Path) -> None:
    """Give parameters storage, but no values, on the device or where the recipe offloads them to.

    ``offload`` is the folder for those that go to disk.
    """
    place = parameters_place(recipe, device)
    for stage in stages:
        if place == "none":
            stage.to_empty(device=device)
        else:
            materialise(stage, device, offload if place == "disk" else None)
        shard.use_replicas_in_place(stage)
        stage.tie()  # to_empty gives every module a tensor of its own
        stage.model.set_frequencies(shape)


def _compile(stage: CausalLM, whole: bool) -> None:
    """The decoder as one graph in one process; layer by layer where hooks and collectives lie between the layers."""
    if whole:
        stage.model.compile()
        return
    if stage.model.embed_tokens is not None:
        # Tensor ranks sum the embedding asynchronously, and a compiled layer cannot differentiate what is still under way.
        stage.model.embed_tokens.register_forward_hook(lambda _module, _inputs, x_btd: x_btd.clone())
    for block in stage.model.layers.values():
        block.compile()
