"""Steps on random tokens, to see what a recipe takes."""

from __future__ import annotations

import torch
from torch import Tensor

from danlu.engines.torch.engine import TorchEngine
from danlu.recipe import Recipe, resolve_shape


def meter_step(recipe: Recipe, steps: int = 2) -> dict[str, int]:
    """Peak bytes of this process in the last of some steps on random tokens; see ``Engine.metered_step``.

    In a layout every process calls it, with torchrun's variables in its environment. The first step makes the optimizer's
    states and the buffers of the layout, so that one step tells less than two.
    """
    shape = resolve_shape(recipe, recipe.model.vocab_size)
    engine = TorchEngine(recipe, shape)
    engine.initialise()
    batch = random_batch(recipe, shape.vocab_size)
    for _ in range(steps - 1):
        engine.train_step(batch, 1e-4)
    return engine.metered_step(batch, 1e-4)[1][engine.rank]


def random_batch(recipe: Recipe, vocabulary: int) -> dict[str, Tensor]:
    """Random tokens in the shape of one rank's batch (micro_batches, micro_batch, sequence_length); a sample is a document."""
    size = (recipe.accumulation, recipe.micro_batch, recipe.data.sequence_length)
    inputs = torch.randint(0, vocabulary, size, generator=torch.Generator().manual_seed(0))
    samples = torch.arange(size[0] * size[1]).view(size[:2])
    batch = {"inputs": inputs, "targets": inputs, "samples": samples}
    if recipe.data.document_mask:
        batch["positions"] = torch.arange(size[-1]).expand(size).contiguous()
        batch["documents"] = torch.zeros(size, dtype=torch.int32)
    return batch
