"""The coordinate check (Yang et al. 2022, appendix D.1): how far a few steps move what a model computes, at several widths."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.engine import TorchEngine
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

SAMPLES = 4
"""Samples of the one batch that is trained on."""


def moved(recipe: Recipe, shape: ModelShape, steps: int) -> dict[str, float]:
    """Part of the model -> root mean square of what its outputs change by in so many steps on one random batch, at the peak rate.

    Parts are the stream after the embedding, what the first and the last layer's attention and MLP add to it, and the logits.
    """
    engine = TorchEngine(recipe, shape)
    engine.initialise()
    random = torch.Generator().manual_seed(recipe.train.seed)
    tokens = torch.randint(0, shape.vocab_size, (SAMPLES, recipe.data.sequence_length + 1), generator=random)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    before = _outputs(engine.model, inputs.to(engine.device))
    for _ in range(steps):
        engine.train_step({"inputs": inputs[None], "targets": targets[None]}, recipe.train.optimizer.learning_rate)
    after = _outputs(engine.model, inputs.to(engine.device))
    return {part: float((after[part] - before[part]).square().mean().sqrt()) for part in before}


@torch.no_grad()
def _outputs(model: CausalLM, tokens_bt: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def keep(part: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        found[part] = output.detach().double()

    blocks = list(model.model.layers.values())
    parts: dict[str, nn.Module | None] = {"embedding": model.model.embed_tokens}
    for place, block in (("first", blocks[0]), ("last", blocks[-1])):
        parts |= {f"{place} attention": block.self_attn, f"{place} MLP": block.mlp}  # type: ignore[dict-item]
    hooks = [module.register_forward_hook(partial(keep, part)) for part, module in parts.items() if module is not None]
    try:
        found["logits"] = model(tokens_bt).double()
    finally:
        for hook in hooks:
            hook.remove()
    return found
