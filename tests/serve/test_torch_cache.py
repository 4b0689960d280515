"""Keys and values in 8 bits: how far they are off, and that nothing but the token itself decides it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from danlu.model.shape import ModelShape
from danlu.serve.executor import Piece
from danlu.serve.torch_cache import Int8Store
from danlu.serve.torch_executor import TorchExecutor

SHAPE = ModelShape(vocab_size=9, layers=1, hidden_size=32, ffn_size=8, heads=4, kv_heads=2)


def test_each_token_and_head_has_a_scale_of_its_own() -> None:
    store = Int8Store(64, SHAPE, torch.device("cpu"))
    new = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1.0, 50.0])[:, None, None]
    new[1, 0] = 0
    store.put(torch.tensor([5, 20, 17]), new)
    store.copy(1, 2)
    found = store.get(torch.tensor([5, 36, 33])).double().numpy()
    steps = np.abs(new.double().numpy()).max(axis=-1, keepdims=True) / 127
    assert (np.abs(found - new.numpy()) <= steps * 0.5001).all() and (found[1, 0] == 0).all()


def test_logits_are_near_and_the_same_however_a_prompt_is_cut(executor_of: Callable[..., TorchExecutor]) -> None:
    small, plain = executor_of(cache="int8"), executor_of()
    tokens = [number * 37 % 296 for number in range(40)]
    whole = small.run([Piece(tokens, 0, [5, 2, 9], 40)])
    expected = plain.run([Piece(tokens, 0, [5, 2, 9], 40)])
    error = np.sqrt(((whole - expected) ** 2).mean() / (expected**2).mean())
    assert 0 < error < 0.02
    small.run([Piece(tokens[:25], 0, [1, 4], 0)])
    small.copy(4, 6)
    others = Piece([3, 1, 4], 0, [7], 1)
    assert (small.run([others, Piece(tokens[25:], 25, [1, 6, 8], 15)])[1:] == whole[25:]).all()
