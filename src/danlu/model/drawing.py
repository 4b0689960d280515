"""The numbers that a tensor starts from: a function of seed and name, so that every engine, layout and device draws the same."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from danlu.model.families import tensor_shapes
from danlu.model.initialisation import initial
from danlu.model.mup import Mup
from danlu.model.shape import ModelShape

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def draw(shape: ModelShape, name: str, seed: int, mup: Mup | None = None) -> NDArray[np.float32]:
    """The whole tensor of that Hugging Face name; tied embeddings have the input's under either name."""
    name = EMBEDDING if shape.tied_embeddings and name == HEAD else name
    mean, deviation = initial(shape, name, mup)
    key = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest(), "big")
    made = np.random.Generator(np.random.Philox(key=key)).standard_normal(tensor_shapes(shape)[name], dtype=np.float32)
    made *= deviation
    made += mean
    return made
