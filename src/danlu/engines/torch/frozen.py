"""A model beside the one that is trained, of which nothing is trained: a teacher, or what preferences are held against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.hugging_face import hugging_face_files
from danlu.engines.torch import shard, tensor_parallel
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.weights import read_weights
from danlu.model.shape import ModelShape
from danlu.recipe.train_sections import ParallelSection


@torch.no_grad()
def frozen(shape: ModelShape, folder: Path, parallel: ParallelSection, layout: Layout, device: torch.device) -> CausalLM:
    """A folder's model, split over the tensor ranks and, by ZeRO 3, over the data ranks; each process reads its part.

    UserError: tensors that are missing, extra, misshapen or not finite.
    """
    assert layout.pipeline == 1, "checked in the recipe"
    with torch.device("meta"):
        model = CausalLM(shape)
    model.requires_grad_(False)
    if layout.tensor > 1:
        tensor_parallel.apply(model, layout.submesh("tensor"), parallel.sequence_parallel, shape.qk_norm)
        model.tie()
    if layout.data > 1 and parallel.zero_stage == 3:
        shard.apply(model, layout, 3, on_host=False)
    model.to_empty(device=device)
    model.tie()
    model.model.set_frequencies(shape)
    read_weights(dict(model.named_parameters()), shape, folder, hugging_face_files(folder))
    return model


def inputs(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a model takes of a micro-batch, in the order of its arguments."""
    return tensors["inputs"], tensors["positions"], tensors.get("documents")


class Ending:
    """A criterion that keeps what a model ends in, and makes no loss of it."""

    def __init__(self) -> None:
        self.seen: tuple[Tensor, Tensor] | None = None

    def __call__(self, hidden_btd: Tensor, weight_vd: Tensor, targets_bt: Tensor, scale: float, vocabulary: object) -> Tensor:
        """Zero."""
        self.seen = hidden_btd, weight_vd
        return hidden_btd.new_zeros(())
