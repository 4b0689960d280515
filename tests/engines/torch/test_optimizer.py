"""The update against AdamW by hand in float64, clipping, and steps that must not happen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from danlu.engines import loss_scale
from danlu.engines.torch.engine import TorchEngine

EngineOf = Callable[..., TorchEngine]
BatchOf = Callable[..., dict[str, Tensor]]

ALL_KINDS = {"family": "qwen3", "qk_norm": True, "qkv_bias": True, "output_bias": True}
"""Matrices, an embedding, biases, norms and the norms of heads."""


def gradients_of(engine: TorchEngine) -> dict[str, Tensor]:
    """Filled with the gradients of the next steps before clipping; one micro-batch a step."""
    seen: dict[str, Tensor] = {}
    for name, parameter in engine.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.__setitem__(name, p.grad.clone())  # type: ignore[misc]
        )
    return seen


def weights_of(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.own.items()}


def state_of(engine: TorchEngine) -> dict[str, Tensor]:
    """Weights and moments."""
    return weights_of(engine) | {name: tensor.clone() for name, tensor in moments_of(engine).items()}


def moments_of(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor for name, _, tensor in engine.optimizer.tensors(set(engine.own))}


def assert_identical(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def norm_of(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))


@pytest.mark.parametrize("tied", [False, True])
def test_three_steps_are_adamw_by_hand(
    engine_of: EngineOf, batch_of: BatchOf, randomise: Callable[[Any], None], tied: bool
) -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in float64; decay on matrices and embeddings alone."""
    decay, first, second, epsilon, clipping = 0.25, 0.8, 0.9, 1e-6, 0.5
    engine = engine_of(
        f"train.optimizer.weight_decay={decay}",
        f"train.optimizer.betas=[{first}, {second}]",
        f"train.optimizer.epsilon={epsilon}",
        f"train.optimizer.gradient_clipping={clipping}",
        tied_embeddings=tied,
        **ALL_KINDS,
    )
    randomise(engine.model)
    gradients = gradients_of(engine)
    exact = {name: tensor.double() for name, tensor in weights_of(engine).items()}
    mean = {name: torch.zeros_like(tensor) for name, tensor in exact.items()}
    square = {name: torch.zeros_like(tensor) for name, tensor in exact.items()}
    for step, rate in enumerate((1e-2, 3e-3, 2e-2), start=1):
        result = engine.train_step(batch_of(seed=step), rate)
        assert result.skipped is None
        assert result.gradient_norm == pytest.approx(norm_of(gradients), rel=1e-6)
        assert result.gradient_norm > clipping
        for name, weight in exact.items():
            gradient = gradients[name].double() * clipping / (result.gradient_norm + 1e-6)
            mean[name] = first * mean[name] + (1 - first) * gradient
            square[name] = second * square[name] + (1 - second) * gradient**2
            update = (mean[name] / (1 - first**step)) / ((square[name] / (1 - second**step)).sqrt() + epsilon)
            decayed = decay * weight if weight.ndim >= 2 else 0.0
            exact[name] = weight - rate * (update + decayed)
    for name, tensor in engine.own.items():
        assert tensor.dtype == torch.float32
        assert (tensor.double() - exact[name]).abs().max() < 1e-6, name


def test_vectors_are_not_decayed(engine_of: EngineOf, batch_of: BatchOf) -> None:
    """Two engines that differ in the decay alone part ways in matrices and agree in norms and biases after one step."""
    after = []
    for decay in (0.0, 0.5):
        engine = engine_of(f"train.optimizer.weight_decay={decay}", **ALL_KINDS)
        engine.train_step(batch_of(), 1e-2)
        after.append(weights_of(engine))
    for name, tensor in after[0].items():
        assert torch.equal(tensor, after[1][name]) == (tensor.ndim < 2), name


@pytest.mark.parametrize("clipping", [0.0, 0.05, 1e6])
def test_clipping_by_the_global_norm(engine_of: EngineOf, batch_of: BatchOf, clipping: float) -> None:
    """After one step the first moment is (1 - beta) x the gradient that was applied; 0 switches clipping off."""
    engine = engine_of(f"train.optimizer.gradient_clipping={clipping}")
    gradients = gradients_of(engine)
    result = engine.train_step(batch_of(), 1e-3)
    assert result.gradient_norm == pytest.approx(norm_of(gradients), rel=1e-6)
    factor = clipping / result.gradient_norm if 0 < clipping < result.gradient_norm else 1.0
    moments = moments_of(engine)
    for name, gradient in gradients.items():
        torch.testing.assert_close(moments[f"exp_avg.{name}"], 0.1 * factor * gradient, rtol=1e-4, atol=1e-9)


def poison_gradient(engine: TorchEngine, value: float) -> Any:
    """One entry of one gradient becomes the value until the handle is removed."""

    def spoil(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    return engine.model.model.layers["1"].mlp.up_proj.weight.register_hook(spoil)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_non_finite_gradient_skips_the_step_whole(engine_of: EngineOf, batch_of: BatchOf, value: float, precision: str) -> None:
    engine = engine_of(f"train.precision={precision}")
    engine.train_step(batch_of(seed=1), 1e-3)
    before = state_of(engine)
    handle = poison_gradient(engine, value)
    result = engine.train_step(batch_of(2, 2, seed=2), 1e-3)
    handle.remove()
    assert result.skipped == "the gradient is not finite"
    assert math.isfinite(result.loss) and not math.isfinite(result.gradient_norm)
    assert_identical(state_of(engine), before)
    # And the step after is what it would have been without: nothing of the bad one lingers.
    engine.train_step(batch_of(seed=3), 1e-3)
    other = engine_of(f"train.precision={precision}")
    other.train_step(batch_of(seed=1), 1e-3)
    other.train_step(batch_of(seed=3), 1e-3)
    assert_identical(state_of(engine), state_of(other))


def test_a_non_finite_loss_skips_the_step_whole(engine_of: EngineOf, batch_of: BatchOf) -> None:
    engine = engine_of()
    engine.train_step(batch_of(seed=1), 1e-3)
    with torch.no_grad():
        engine.model.model.norm.weight[0] = 3e38  # logits overflow
    before = state_of(engine)
    result = engine.train_step(batch_of(seed=2), 1e-3)
    assert result.skipped == "the loss is not finite"
    assert not math.isfinite(result.loss)
    assert_identical(state_of(engine), before)


TINY: dict[str, Any] = {"layers": 1, "hidden_size": 16, "ffn_size": 32, "heads": 2, "kv_heads": 1}
"""fp16 is emulated on most CPUs."""


def with_scale(engine: TorchEngine, folder: Path, scale: float) -> None:
    """Bring the loss scaler into a state, the way a checkpoint does."""
    state = engine.save(folder)
    state["scaler"] |= {"scale": scale}
    engine.load(folder, json.loads(json.dumps(state)))


def test_loss_scale_overflow_halves_the_scale_and_recovers(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    engine = engine_of("train.precision=fp16", **TINY)
    engine.train_step(batch_of(), 1e-3)
    with_scale(engine, tmp_path, 2.0**26)
    before, scales = state_of(engine), []
    for _ in range(20):
        result = engine.train_step(batch_of(), 1e-3)
        scales.append(result.loss_scale)
        if result.skipped is None:
            break
        assert result.skipped == "loss scale overflow"
        assert math.isfinite(result.loss) and not math.isfinite(result.gradient_norm)
        assert_identical(state_of(engine), before)
    assert 1 < len(scales) < 20
    assert scales == [2.0 ** (26 - halvings) for halvings in range(len(scales))]
    assert result.skipped is None and math.isfinite(result.gradient_norm)
    assert not torch.equal(weights_of(engine)["lm_head.weight"], before["lm_head.weight"])


def test_the_loss_scale_grows_after_good_steps(
    engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 2)
    engine = engine_of("train.precision=fp16", **TINY)
    with_scale(engine, tmp_path, 1024.0)
    assert [engine.train_step(batch_of(), 1e-3).loss_scale for _ in range(5)] == [1024, 1024, 2048, 2048, 4096]


def test_the_scale_cancels_out(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    """Loss, gradient norm and update do not depend on the scale as long as nothing over- or underflows."""
    after = []
    for number, scale in enumerate((2.0**8, 2.0**15)):
        engine = engine_of("train.precision=fp16", **TINY)
        folder = tmp_path / str(number)
        folder.mkdir()
        with_scale(engine, folder, scale)
        after.append((engine.train_step(batch_of(), 1e-3), weights_of(engine)))
    (small, small_weights), (large, large_weights) = after
    assert small.loss == pytest.approx(large.loss, rel=1e-6)
    assert small.gradient_norm == pytest.approx(large.gradient_norm, rel=1e-3)
    for name, tensor in small_weights.items():
        assert (tensor - large_weights[name]).abs().mean() < 1e-5, name


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.01), ("fp16", 0.001)])
def test_half_precision_tracks_fp32_over_twenty_steps(
    engine_of: EngineOf, batch_of: BatchOf, precision: str, tolerance: float
) -> None:
    """The same steps within 1 % (bf16: 8 bits) and 0.1 % (fp16: 11 bits) of the FP32 loss, with FP32 master weights."""
    curves = {}
    for name in ("fp32", precision):
        engine = engine_of(f"train.precision={name}", **TINY)
        curves[name] = [engine.train_step(batch_of(seed=step % 2), 1e-2).loss for step in range(20)]
        assert {tensor.dtype for tensor in state_of(engine).values()} == {torch.float32}
        assert engine.optimizer.loss_scale == (65536.0 if name == "fp16" else 1.0)
    assert curves["fp32"][-1] < 0.5 * curves["fp32"][0]
    assert curves[precision] == pytest.approx(curves["fp32"], rel=tolerance)
    assert curves[precision] != curves["fp32"]  # it did compute in half precision


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_updates_too_small_for_half_precision_add_up(engine_of: EngineOf, batch_of: BatchOf, precision: str) -> None:
    """A norm weight of 1 moves by 1e-5 a step, which bf16 (2^-8) and fp16 (2^-10) would round away."""
    engine = engine_of(f"train.precision={precision}", **TINY)
    for _ in range(5):
        engine.train_step(batch_of(), 1e-5)
    moved = (engine.own["model.norm.weight"].detach() - 1).abs()
    assert moved.median() == pytest.approx(5e-5, rel=0.2)
