"""A tiny model, its executor, and a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from danlu.data import tokenizer as tokenizers
from danlu.data.tokenizer import Tokenizer
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape
from danlu.serve.executor import CacheType
from danlu.serve.torch_executor import TorchExecutor

BASE: dict[str, Any] = {
    "vocab_size": 300,
    "layers": 2,
    "hidden_size": 64,
    "ffn_size": 96,
    "heads": 4,
    "kv_heads": 2,
    "max_sequence_length": 256,
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def weights_of(shape: ModelShape, seed: int = 0) -> dict[str, Tensor]:
    """Random, and far enough from zero that logits are not all alike."""
    random = torch.Generator().manual_seed(seed)
    made = {}
    for name, size in tensor_shapes(shape).items():
        drawn = torch.randn(size, generator=random)
        made[name] = 1 + 0.1 * drawn if len(size) == 1 and "norm" in name else drawn * 0.15
    return made


@pytest.fixture(scope="session")
def executor_of() -> Callable[..., TorchExecutor]:
    def make(blocks: int = 64, cache: CacheType = "float32", **fields: Any) -> TorchExecutor:
        shape = ModelShape(**{**BASE, **fields})
        return TorchExecutor(shape, weights_of(shape), blocks, cache)

    return make


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The 256 bytes, three special tokens, and some merges."""
    return Tokenizer(tokenizers.train(["炉火 纯青 the quick brown fox 🐉 "] * 4, 300), "test", tokenizers.BEGIN, tokenizers.END)
