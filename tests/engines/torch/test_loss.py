"""The fused loss against F.cross_entropy on whole logits in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from danlu.engines.torch import loss as module
from danlu.engines.torch.loss import linear_cross_entropy

VOCABULARY, HIDDEN, BATCH, LENGTH = 50, 16, 3, 21
TOKENS = BATCH * LENGTH


def case(ignored: float = 0.3, spread: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (b, t, d), weight (v, d) and targets (b, t)."""
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(BATCH, LENGTH, HIDDEN, generator=random, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=random) * spread).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=random)
    targets[torch.rand(BATCH, LENGTH, generator=random) < ignored] = -100
    return hidden, weight, targets


def truth(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float) -> tuple[float, Tensor, Tensor]:
    """Loss, gradient of hidden and gradient of weight in float64."""
    exact_hidden, exact_weight = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    logits = (exact_hidden @ exact_weight.t()).flatten(0, 1)
    total = scale * F.cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=-100)
    total.backward()
    assert exact_hidden.grad is not None and exact_weight.grad is not None
    return total.item(), exact_hidden.grad, exact_weight.grad


def assert_equal(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float = 1.0, tolerance: float = 2e-6) -> None:
    expected, expected_hidden, expected_weight = truth(hidden, weight, targets, scale)
    total = linear_cross_entropy(hidden, weight, targets, scale)
    total.backward()
    assert total.item() == pytest.approx(expected, rel=tolerance, abs=1e-30)
    for got, wanted in ((hidden.grad, expected_hidden), (weight.grad, expected_weight)):
        assert got is not None and got.dtype == torch.float32
        assert (got.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("chunk_rows", [1, 4, TOKENS - 1, TOKENS, 10_000])
@pytest.mark.parametrize("block_rows", [1, 3, 10_000])
def test_equals_float64_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch, chunk_rows: int, block_rows: int) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_rows * VOCABULARY * 4)
    monkeypatch.setattr(module, "BLOCK_BYTES", block_rows * VOCABULARY * 4)
    assert_equal(*case())


def test_a_vocabulary_larger_than_a_piece_still_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    assert_equal(*case())


@pytest.mark.parametrize("scale", [1 / TOKENS, 65536.0, 1e-6])
def test_the_scale_is_folded_in(scale: float) -> None:
    assert_equal(*case(), scale=scale)


def test_a_gradient_that_arrives_from_above_multiplies() -> None:
    hidden, weight, targets = case()
    _, expected_hidden, expected_weight = truth(hidden, weight, targets, 3.0)
    (3.0 * linear_cross_entropy(hidden, weight, targets)).backward()
    assert hidden.grad is not None and weight.grad is not None
    torch.testing.assert_close(hidden.grad.double(), expected_hidden, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), expected_weight, rtol=1e-5, atol=1e-5)


def test_extreme_logits() -> None:
    """Rows of +-1e4: a right guess costs nothing, a wrong one 2e4 nats, and no exponential overflows."""
    weight = torch.zeros(4, 2).requires_grad_()
    with torch.no_grad():
        weight.copy_(torch.tensor([[1e4, 0.0], [-1e4, 0.0], [0.0, 1e4], [0.0, -1e4]]))
    hidden = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [1.0, 1.0]]], requires_grad=True)
    targets = torch.tensor([[0, 1, 2, 2]])
    expected, _, _ = truth(hidden, weight, targets, 1.0)
    assert expected == pytest.approx(0 + 2e4 + 2e4 + 0.6931, abs=1e-3)
    assert_equal(hidden, weight, targets)


def test_nothing_supervised_is_zero_with_zero_gradients() -> None:
    hidden, weight, _ = case()
    total = linear_cross_entropy(hidden, weight, torch.full((BATCH, LENGTH), -100))
    total.backward()
    assert total.item() == 0.0
    assert hidden.grad is not None and weight.grad is not None
    assert not hidden.grad.any() and not weight.grad.any()


def test_an_ignored_row_of_nonsense_costs_nothing() -> None:
    """Only supervised rows count: changing the hidden state of an ignored one changes neither loss nor the others' gradient."""
    hidden, weight, targets = case()
    other = hidden.detach().clone()
    other[targets == -100] = 50.0
    first = linear_cross_entropy(hidden, weight, targets)
    second = linear_cross_entropy(other.requires_grad_(), weight, targets)
    first.backward()
    assert weight.grad is not None
    gradient = weight.grad.clone()
    weight.grad = None
    second.backward()
    assert first.item() == second.item()
    assert torch.equal(gradient, weight.grad)


def test_bf16_autocast_stays_within_its_rounding() -> None:
    """bf16 keeps 8 bits (a relative step of 2^-8 = 0.4 %): loss within 0.2 %, gradients within 1 % of their largest entry."""
    hidden, weight, targets = case(spread=0.25)
    expected, expected_hidden, expected_weight = truth(hidden, weight, targets, 1 / TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        total = linear_cross_entropy(hidden, weight, targets, 1 / TOKENS)
    total.backward()
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(expected, rel=2e-3)
    assert total.item() != pytest.approx(expected, rel=1e-9)  # the products did run in bf16
    for got, wanted in ((hidden.grad, expected_hidden), (weight.grad, expected_weight)):
        assert got is not None and got.dtype == torch.float32
        assert (got.double() - wanted).abs().max() <= 1e-2 * wanted.abs().max()


def test_evaluation_makes_one_product_and_training_three() -> None:
    """Without grad mode no gradient is computed, although the weight is a parameter."""
    hidden, weight, targets = case()
    one_product = 2 * TOKENS * HIDDEN * VOCABULARY
    with FlopCounterMode(display=False) as training:
        kept = linear_cross_entropy(hidden, weight, targets)
    with FlopCounterMode(display=False) as evaluation, torch.no_grad():
        total = linear_cross_entropy(hidden, weight, targets)
    assert training.get_total_flops() == 3 * one_product
    assert evaluation.get_total_flops() == one_product
    assert not total.requires_grad
    assert total.item() == kept.item()
