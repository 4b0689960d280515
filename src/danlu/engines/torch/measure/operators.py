"""Seconds of the operators of a step, by size: matrix products, attention, and danlu's own modules between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from danlu.engines.torch.decoder import RMSNorm, rotate
from danlu.engines.torch.loss import _cross_entropy
from danlu.engines.torch.measure.clock import Clock

Points = list[tuple[float, float]]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WIDTH, HEAD = 256, 64
VOCABULARY = 4096
SIZES = {"cpu": (1 << 10, 1 << 16, 1 << 19, 1 << 22), "cuda": (1 << 10, 1 << 20, 1 << 23, 1 << 26)}
"""Elements of an operator."""
SHAPES = {
    "cpu": ((16, 16, 16), (128, 128, 128), (256, 256, 256), (512, 512, 256), (512, 1024, 512), (1024, 2048, 512)),
    "cuda": ((16, 16, 16), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
}
LENGTHS = {"cpu": (16, 64, 128, 256, 512, 1024), "cuda": (16, 256, 1024, 4096, 8192)}
HEADS = {"cpu": 4, "cuda": 32}


def matmul(clock: Clock, precision: str) -> Points:
    """Mean seconds of a linear layer's three products (forward, gradients of input and of weight), by operations."""
    found: Points = []
    for m, n, k in SHAPES[clock.device.type]:
        x, w, g = (_random(clock, precision, *size) for size in ((m, k), (n, k), (m, n)))
        calls: Sequence[Callable[[], object]] = (lambda: x @ w.t(), lambda: g @ w, lambda: g.t() @ x)  # noqa: B023
        found.append((2 * m * n * k, sum(map(clock.least, calls)) / 3))
    return found


def attention(clock: Clock, precision: str) -> dict[str, Points]:
    """Seconds of causal attention for one head, by length of the sequence."""
    both: dict[str, Points] = {"forward": [], "backward": []}
    heads = HEADS[clock.device.type]
    for length in LENGTHS[clock.device.type]:
        # As the model gives them: heads are not contiguous.
        inputs = [_random(clock, precision, 1, length, heads, HEAD).requires_grad_() for _ in range(3)]
        q, k, v = (each.transpose(1, 2) for each in inputs)
        there, back = _both(clock, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs)  # noqa: B023
        both["forward"].append((length, there / heads))
        both["backward"].append((length, back / heads))
    return both


def operators(clock: Clock, precision: str) -> dict[str, dict[str, Points]]:
    """Seconds of each of ``plan.measured.OPERATORS``, forward and backward, by elements."""
    found: dict[str, dict[str, Points]] = {name: {"forward": [], "backward": []} for name in _CASES}
    for size in SIZES[clock.device.type]:
        for name, case in _CASES.items():
            call, inputs = case(clock, precision, size)
            with torch.autocast(clock.device.type, DTYPES[precision], enabled=precision != "fp32", cache_enabled=False):
                there, back = _both(clock, call, inputs)
            found[name]["forward"].append((size, there))
            found[name]["backward"].append((size, back))
    return found


_Case = tuple[Callable[[], Any], list[Tensor]]


def _norm(clock: Clock, precision: str, size: int) -> _Case:
    norm = RMSNorm(WIDTH, 1e-6).to(clock.device)
    x = _random(clock, "fp32", size // WIDTH, WIDTH).requires_grad_()
    return lambda: norm(x), [x, norm.weight]


def _rotation(clock: Clock, precision: str, size: int) -> _Case:
    heads = WIDTH // HEAD
    x = _random(clock, precision, 1, size // WIDTH, heads, HEAD).requires_grad_()
    angle = _random(clock, "fp32", 1, size // WIDTH, 1, HEAD // 2)
    return lambda: rotate(x, angle, angle, interleaved=False), [x]


def _activation(clock: Clock, precision: str, size: int) -> _Case:
    gate, up = (_random(clock, precision, size // WIDTH, WIDTH).requires_grad_() for _ in range(2))
    return lambda: F.silu(gate) * up, [gate, up]


def _add(clock: Clock, precision: str, size: int) -> _Case:
    """The residual sum; in the backward pass, where a tensor was read twice, the sum of two gradients."""
    x, more = _random(clock, "fp32", size), _random(clock, precision, size)
    return lambda: x + more, []


def _copy(clock: Clock, precision: str, size: int) -> _Case:
    x, other = _random(clock, precision, size), _random(clock, precision, size)
    return lambda: other.copy_(x), []


def _cast(clock: Clock, precision: str, size: int) -> _Case:
    weight = _random(clock, "fp32", size).requires_grad_()
    return lambda: weight.to(torch.bfloat16), [weight]


def _loss(clock: Clock, precision: str, size: int) -> _Case:
    rows = max(1, size // VOCABULARY)
    logits = _random(clock, precision, rows, size // rows)
    targets = torch.zeros(rows, dtype=torch.long, device=clock.device)
    return lambda: _cross_entropy(logits, targets, 1.0), []


def _embedding(clock: Clock, precision: str, size: int) -> _Case:
    """A look-up of few rows of a table: what its gradient costs is the table."""
    table = _random(clock, "fp32", size // WIDTH, WIDTH).requires_grad_()
    tokens = torch.zeros(4, dtype=torch.long, device=clock.device)
    return lambda: F.embedding(tokens, table), [table]


def _accumulate(clock: Clock, precision: str, size: int) -> _Case:
    kept, new = _random(clock, "fp32", size), _random(clock, "fp32", size)
    return lambda: kept.add_(new), []


def _update(clock: Clock, precision: str, size: int) -> _Case:
    """Norm, clipping and AdamW."""
    weight = _random(clock, "fp32", size).requires_grad_()
    weight.grad = _random(clock, "fp32", size)
    adamw = torch.optim.AdamW([weight], lr=1e-9, fused=True)

    def step() -> None:
        torch.nn.utils.get_total_norm([weight.grad])  # type: ignore[list-item]
        weight.grad.mul_(0.999)  # type: ignore[union-attr]
        adamw.step()

    return step, []


_CASES: dict[str, Callable[[Clock, str, int], _Case]] = {
    "norm": _norm,
    "rotation": _rotation,
    "activation": _activation,
    "add": _add,
    "copy": _copy,
    "cast": _cast,
    "loss": _loss,
    "embedding": _embedding,
    "accumulate": _accumulate,
    "update": _update,
}


def _both(clock: Clock, call: Callable[[], Any], inputs: list[Tensor]) -> tuple[float, float]:
    """Seconds forward and backward; of what has no gradient the backward pass is the same again."""
    there = clock.least(call)
    if not inputs:
        return there, there
    made = call()
    gradient = torch.ones_like(made)
    return there, clock.least(lambda: torch.autograd.grad(made, inputs, gradient, retain_graph=True))


def _random(clock: Clock, precision: str, *size: int) -> Tensor:
    return torch.randn(size, device=clock.device).to(DTYPES[precision])
