"""The weights of a folder as tensors by their Hugging Face name."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.hugging_face import weights_files
from danlu.engines.torch.weights import read_weights
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape


def load_weights(shape: ModelShape, folder: Path, device: str = "cpu") -> dict[str, Tensor]:
    """In float32, in memory of their own. UserError: the files are missing, damaged, or do not hold this model."""
    weights = {name: torch.empty(size, device=device) for name, size in tensor_shapes(shape).items()}
    read_weights(weights, shape, folder, weights_files(folder))
    return weights
