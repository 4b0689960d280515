"""What the tests of the torch engine share: small shapes of every family, engines with random weights, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.engine import TorchEngine
from danlu.model.shape import ModelShape
from danlu.recipe import parse

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "layers": 3,
    "hidden_size": 48,
    "ffn_size": 80,
    "heads": 6,
    "kv_heads": 2,
    "max_sequence_length": 128,
}

ShapeOf = Callable[..., ModelShape]
EngineOf = Callable[..., TorchEngine]
BatchOf = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small compute faster without a thread pool, above all beside other processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def shape_of() -> ShapeOf:
    """A small shape with the given fields changed."""
    return lambda **fields: ModelShape(**BASE | fields)


@pytest.fixture
def engine_of(shape_of: ShapeOf) -> EngineOf:
    """An engine with initial weights: recipe overrides such as ``train.seed=3``, then fields of the shape."""

    def make(*overrides: str, shape: ModelShape | None = None, **fields: Any) -> TorchEngine:
        shape = shape or shape_of(**fields)
        tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x.txt"}]}}
        engine = TorchEngine(parse(tree, ["train.device=cpu", *overrides]), shape)
        engine.initialise()
        return engine

    return make


@pytest.fixture
def randomise() -> Callable[[CausalLM], None]:
    """Draw every tensor at random, norms and biases too, so that no two of them can be mistaken for one another."""

    @torch.no_grad()
    def draw(model: torch.nn.Module) -> None:
        random = torch.Generator().manual_seed(7)
        for name, tensor in model.named_parameters():
            if name.endswith("norm.weight"):
                tensor.copy_(1 + 0.3 * torch.randn(tensor.shape, generator=random))
            else:
                tensor.copy_(0.15 * torch.randn(tensor.shape, generator=random))

    return draw


@pytest.fixture
def batch_of() -> BatchOf:
    """A global batch of random tokens, (micro_batches, micro_batch, length); ``ignored`` is the share without a target."""

    def make(
        micro_batches: int = 1, micro_batch: int = 4, length: int = 16, ignored: float = 0.0, seed: int = 0
    ) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        size = (micro_batches, micro_batch, length)
        inputs = torch.randint(0, BASE["vocab_size"], size, generator=random)
        targets = torch.randint(0, BASE["vocab_size"], size, generator=random)
        targets[torch.rand(size, generator=random) < ignored] = -100
        return {"inputs": inputs, "targets": targets}

    return make
