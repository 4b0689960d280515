"""Dropout masks: their rate, independence and scaling by statistics; and that training draws them, evaluation not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from danlu.engines.torch.dropout import Dropout, Keys, elsewhere
from danlu.engines.torch.engine import TorchEngine

EngineOf = Callable[..., TorchEngine]
BatchOf = Callable[..., dict[str, Tensor]]

B, T, D = 8, 64, 96
SIGMAS = 5.0
"""A right mask fails one in two million such looks; all inputs are fixed, so that the tests do not flicker."""


def mask(seed: int = 0, step: int = 0, layer: int = 1, place: int = 0, channel: int = 0, rate: float = 0.1, d: int = D) -> Tensor:
    """(B, T, d) of 0 and 1."""
    keys = elsewhere(Keys(seed)(step * B + torch.arange(B), T, layer), place)
    return Dropout(rate).keep(keys, channel, d).double()


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """In standard deviations of the distribution, which is close to normal for many degrees of freedom."""
    statistic = ((counts - expected).square() / expected).sum().item()
    freedom = counts.numel() - 1
    return abs(statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_is_met(rate: float) -> None:
    kept = mask(rate=rate)
    sigma = math.sqrt(rate * (1 - rate) / kept.numel())
    assert abs(kept.mean().item() - (1 - rate)) < SIGMAS * sigma


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["samples", "columns", "channels"])
def test_no_sample_column_or_channel_is_favoured(dim: int) -> None:
    kept = mask()
    rest = [other for other in range(3) if other != dim]
    counts = kept.sum(rest)
    # Binomial counts: a chi-square statistic with their own variance.
    n = kept.numel() / counts.numel()
    statistic = ((counts - 0.9 * n).square() / (n * 0.9 * 0.1)).sum().item()
    assert abs(statistic - len(counts)) < SIGMAS * math.sqrt(2 * len(counts))


def test_the_bits_behind_a_mask_are_uniform() -> None:
    """Chi-square over 256 rates at once: the finest 8 bits that decide."""
    levels = torch.stack([mask(rate=rate / 256) for rate in range(1, 230)])
    # The first rate at which an entry is dropped; all rates see the same hash.
    first = (levels == 0).double().argmax(0)[(levels == 0).any(0)]
    counts = torch.bincount(first, minlength=229).double()
    assert chi_square(counts, counts.sum() / 229 * torch.ones(229)) < SIGMAS


def correlation(left: Tensor, right: Tensor) -> float:
    """In standard deviations of what independence gives."""
    left, right = left - left.mean(), right - right.mean()
    return abs((left * right).mean().item()) / (left.std() * right.std()).item() * math.sqrt(left.numel())


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"channel": D}, {"place": 1}, {"place": 2}, {"layer": 2}, {"step": 1}, {"step": 1000}],
    ids=["seed", "other half", "place", "next place", "next layer", "next step", "later step"],
)
def test_masks_of_other_seeds_layers_and_steps_are_independent(other: dict[str, int]) -> None:
    assert correlation(mask(rate=0.5), mask(rate=0.5, **other)) < SIGMAS


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("distance", [1, 2, 4])
def test_neighbours_within_a_mask_are_independent(dim: int, distance: int) -> None:
    kept = mask(rate=0.5)
    size = kept.shape[dim]
    assert correlation(kept.narrow(dim, 0, size - distance), kept.narrow(dim, distance, size - distance)) < SIGMAS


def test_pairs_of_channels_fall_as_often_as_chance_has_it() -> None:
    """Chi-square over the 16 outcomes of the four channels that share one 64-bit word."""
    outcome = (mask(rate=0.5).view(-1, 4) * torch.tensor([1.0, 2.0, 4.0, 8.0])).sum(-1).long()
    counts = torch.bincount(outcome, minlength=16).double()
    assert chi_square(counts, torch.full((16,), len(outcome) / 16)) < SIGMAS


def test_any_width_and_any_part() -> None:
    """Some channels have those of the whole, and so has a part of the sequence."""
    assert torch.equal(mask(d=95), mask(d=96)[..., :95])
    assert torch.equal(torch.cat([mask(channel=first, d=19) for first in range(0, 95, 19)], -1), mask(d=95))
    x, keys = torch.ones(B, T, D), Keys(7)(torch.arange(B), T, 5)
    pieces = [Dropout(0.3, part)(x[:, : T // 4], keys, 1) for part in range(4)]
    assert torch.equal(torch.cat(pieces, 1), Dropout(0.3)(x, keys, 1))


def test_what_stays_is_scaled_up_and_so_is_its_gradient() -> None:
    dropout = Dropout(0.25)
    x = torch.randn(B, T, D, requires_grad=True)
    keys = Keys(3)(torch.arange(B), T, 4)
    made = dropout(x, keys, 1)
    factor = dropout.keep(keys, D, D) * (1 / 0.75)
    torch.testing.assert_close(made, x.detach() * factor)
    made.sum().backward()
    torch.testing.assert_close(x.grad, factor.float())
    assert dropout(torch.ones(B, T, D), keys, 1).mean().item() == pytest.approx(1.0, abs=0.02)


def test_training_draws_from_the_sample_numbers_and_evaluation_does_not(engine_of: EngineOf, batch_of: BatchOf) -> None:
    batch = batch_of(1, 4) | {"samples": torch.arange(4)[None]}
    later = batch | {"samples": torch.arange(4, 8)[None]}
    engines = [engine_of(), engine_of("train.dropout=0.2"), engine_of("train.dropout=0.2"), engine_of("train.dropout=0.2")]
    flat = {name: tensor[0] for name, tensor in batch.items() if name != "samples"}
    assert len({engine.evaluate(flat) for engine in engines}) == 1
    plain, first, same, other = (
        engine.train_step(one, 1e-3).loss for engine, one in zip(engines, [batch, batch, batch, later], strict=True)
    )
    assert first == same
    assert len({plain, first, other}) == 3
    assert first == pytest.approx(plain, rel=0.1)
