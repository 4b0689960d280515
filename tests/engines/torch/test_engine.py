"""One engine as a whole: accumulation, evaluation, checkpoints that continue bit for bit, initial weights, compilation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

from danlu.engines.base import NOTHING_SUPERVISED, StepResult
from danlu.engines.torch.engine import TorchEngine
from danlu.errors import UserError

EngineOf = Callable[..., TorchEngine]
BatchOf = Callable[..., dict[str, Tensor]]

TINY: dict[str, Any] = {"layers": 1, "hidden_size": 16, "ffn_size": 32, "heads": 2, "kv_heads": 1}


def state_of(engine: TorchEngine) -> dict[str, Tensor]:
    """Weights and moments."""
    tensors = engine.own | {name: tensor for name, _, tensor in engine.optimizer.tensors(set(engine.own))}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_identical(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


# Accumulation


def one_step(engine: TorchEngine, batch: dict[str, Tensor]) -> tuple[StepResult, dict[str, Tensor]]:
    """The result and the gradients, accumulated over the micro-batches and not yet clipped."""
    gradients: dict[str, Tensor] = {}
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients.__setitem__(name, p.grad.clone())  # type: ignore[misc]
        )
        for name, parameter in engine.model.named_parameters()
    ]
    result = engine.train_step(batch, 1e-3)
    for handle in handles:
        handle.remove()
    return result, gradients


def uneven(batch: dict[str, Tensor]) -> None:
    """Micro-batch i of 8 keeps about (8 - i) / 8 of its targets, the last one a single target, and the first one none at all."""
    random = torch.Generator().manual_seed(5)
    for micro in range(8):
        targets = batch["targets"][micro]
        targets[torch.rand(targets.shape, generator=random) < micro / 8] = -100
    batch["targets"][7, 0, 1:] = -100
    batch["targets"][7, 1:] = -100
    batch["targets"][0] = -100


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_eight_micro_batches_of_four_are_one_of_thirty_two(
    engine_of: EngineOf, batch_of: BatchOf, randomise: Callable[[Any], None], even: bool, tied: bool
) -> None:
    many = batch_of(8, 4, 24)
    if not even:
        uneven(many)
    one = {name: tensor.reshape(1, 32, 24) for name, tensor in many.items()}
    results = []
    for batch in (many, one):
        engine = engine_of(tied_embeddings=tied)
        randomise(engine.model)
        results.append((*one_step(engine, batch), engine.train_step(one, 1e-3).loss))
    (first, gradients, next_loss), (second, expected, expected_next) = results
    assert first.supervised == second.supervised == int((one["targets"] != -100).sum())
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.linalg.vector_norm(gradients[name] - gradient) <= 1e-6 * torch.linalg.vector_norm(gradient), name
    assert next_loss == pytest.approx(expected_next, rel=1e-5)


# Loss


def reference(engine: TorchEngine, batch: dict[str, Tensor]) -> float:
    """Summed loss from whole logits in float64."""
    with torch.no_grad():
        logits = engine.model(batch["inputs"]).double()
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum", ignore_index=-100).item()


def test_evaluate_is_the_summed_loss(engine_of: EngineOf, batch_of: BatchOf) -> None:
    """On tensors and on numpy arrays; weights and gradients stay as they are."""
    engine = engine_of()
    batch = {name: tensor[0] for name, tensor in batch_of(ignored=0.3).items()}
    before = state_of(engine)
    nats, supervised = engine.evaluate(batch)
    assert nats == pytest.approx(reference(engine, batch), rel=1e-6)
    assert supervised == int((batch["targets"] != -100).sum())
    assert engine.evaluate({name: tensor.numpy() for name, tensor in batch.items()}) == (nats, supervised)
    assert_identical(state_of(engine), before)
    assert all(parameter.grad is None for parameter in engine.model.parameters())


def test_the_loss_of_a_step_is_the_mean_before_it(engine_of: EngineOf, batch_of: BatchOf) -> None:
    engine = engine_of()
    batch = batch_of(2, 4, ignored=0.3)
    parts = [engine.evaluate({name: tensor[micro] for name, tensor in batch.items()}) for micro in range(2)]
    result = engine.train_step(batch, 1e-2)
    supervised = sum(count for _, count in parts)
    assert result.supervised == supervised
    assert result.loss == pytest.approx(sum(nats for nats, _ in parts) / supervised, rel=1e-6)
    assert result.loss_scale == 1.0
    assert sum(engine.evaluate({name: tensor[micro] for name, tensor in batch.items()})[0] for micro in range(2)) < sum(
        nats for nats, _ in parts
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_evaluates_near_fp32(engine_of: EngineOf, batch_of: BatchOf, precision: str) -> None:
    batch = {name: tensor[0] for name, tensor in batch_of().items()}
    engine = engine_of(f"train.precision={precision}", **TINY)
    nats, _ = engine.evaluate(batch)
    assert nats == pytest.approx(reference(engine, batch), rel=1e-3)
    assert nats != engine_of(**TINY).evaluate(batch)[0]


# Checkpoints


@pytest.mark.parametrize(
    ("precision", "fields"),
    [
        ("fp32", {"tied_embeddings": True}),
        ("bf16", {"family": "qwen3", "qk_norm": True}),
        ("fp16", TINY),
    ],
)
def test_a_loaded_checkpoint_continues_bit_for_bit(
    engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path, precision: str, fields: dict[str, Any]
) -> None:
    """Three steps, a checkpoint, three more: by the engine itself, and by a new one that only read the checkpoint."""
    engine = engine_of(f"train.precision={precision}", **fields)
    for step in range(3):
        engine.train_step(batch_of(2, 2, seed=step), 1e-2)
    torch.rand(5)
    state = json.loads(json.dumps(engine.save(tmp_path)))
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "optimizer-00000.safetensors"}
    results = [engine.train_step(batch_of(2, 2, seed=step), 1e-2) for step in range(3, 6)]
    drawn = torch.rand(5)

    other = engine_of(f"train.precision={precision}", "train.seed=99", **fields)
    other.load(tmp_path, state)
    assert [other.train_step(batch_of(2, 2, seed=step), 1e-2) for step in range(3, 6)] == results
    assert_identical(state_of(other), state_of(engine))
    assert other.optimizer.scale.state() == engine.optimizer.scale.state()
    assert torch.equal(torch.rand(5), drawn)


def test_a_checkpoint_restores_the_loss_scale(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    engine = engine_of("train.precision=fp16", **TINY)
    state = engine.save(tmp_path)
    state["scaler"] |= {"scale": 2.0**24}
    engine.load(tmp_path, state)
    while engine.train_step(batch_of(), 1e-3).skipped:
        pass
    scale = engine.optimizer.loss_scale
    assert scale < 2.0**24
    state = engine.save(tmp_path)
    other = engine_of("train.precision=fp16", **TINY)
    other.load(tmp_path, json.loads(json.dumps(state)))
    assert other.optimizer.loss_scale == scale != engine_of("train.precision=fp16", **TINY).optimizer.loss_scale


@pytest.mark.parametrize(("saved", "loaded"), [("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp16"), ("fp16", "fp32")])
def test_a_checkpoint_loads_in_another_precision(
    engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path, saved: str, loaded: str
) -> None:
    """Weights and moments are FP32 everywhere, so they carry over exactly and the next loss is about the same."""
    engine = engine_of(f"train.precision={saved}", **TINY)
    for step in range(3):
        engine.train_step(batch_of(seed=step), 1e-2)
    state = json.loads(json.dumps(engine.save(tmp_path)))
    other = engine_of(f"train.precision={loaded}", "train.seed=99", **TINY)
    other.load(tmp_path, state)
    assert_identical(state_of(other), state_of(engine))
    ours, theirs = other.train_step(batch_of(seed=3), 1e-2), engine.train_step(batch_of(seed=3), 1e-2)
    assert ours.skipped is None
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert ours.loss_scale == (65536.0 if loaded == "fp16" else 1.0)


def test_a_checkpoint_of_no_steps_resets_an_engine(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    """Nothing of what an engine did before it loads survives."""
    fresh = engine_of()
    state = fresh.save(tmp_path)
    used = engine_of()
    used.train_step(batch_of(seed=8), 1e-2)
    used.load(tmp_path, state)
    for engine in (fresh, used):
        engine.train_step(batch_of(), 1e-3)
    assert_identical(state_of(used), state_of(fresh))


def test_load_weights_reads_the_weights_alone(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    engine = engine_of()
    engine.train_step(batch_of(), 1e-2)
    engine.save(tmp_path)
    (tmp_path / "optimizer-00000.safetensors").unlink()
    other = engine_of("train.seed=99")
    other.load_weights(tmp_path)
    assert_identical(other.own, engine.own)
    assert not list(other.optimizer.tensors(set(other.own)))


# Initial weights


WIDE: dict[str, Any] = {"vocab_size": 256, "hidden_size": 128, "ffn_size": 256, "heads": 4, "kv_heads": 2, "layers": 4}


def test_initial_weights_are_normal_with_the_standard_deviation_of_the_papers(engine_of: EngineOf) -> None:
    """sqrt(2 / 5d) for matrices, over sqrt(2 layers) for the two that write to the residual stream; norms 1, biases 0."""
    engine = engine_of(**WIDE, family="qwen3", qk_norm=True, qkv_bias=True, output_bias=True)
    small = math.sqrt(2 / (5 * 128))
    for name, tensor in engine.own.items():
        if name.endswith("norm.weight"):
            assert (tensor == 1).all(), name
        elif name.endswith("bias"):
            assert (tensor == 0).all(), name
        else:
            expected = small / math.sqrt(8) if "o_proj" in name or "down_proj" in name else small
            # 8192 draws at least: the standard deviation is known to 0.8 %, the mean to 0.011 of it.
            assert tensor.std().item() == pytest.approx(expected, rel=0.04), name
            assert abs(tensor.mean().item()) < 0.06 * expected, name
            within = (tensor.abs() < expected).double().mean().item()
            assert within == pytest.approx(0.6827, abs=0.03), name  # normal, not uniform (0.577)


def test_no_two_tensors_start_alike(engine_of: EngineOf) -> None:
    matrices = {name: tensor for name, tensor in engine_of(**WIDE).own.items() if tensor.ndim == 2}
    first_entries = {name: tuple(tensor.flatten()[:4].tolist()) for name, tensor in matrices.items()}
    assert len(set(first_entries.values())) == len(matrices)


def test_a_seed_gives_its_weights_whatever_was_drawn_before(engine_of: EngineOf) -> None:
    torch.manual_seed(1)
    first = state_of(engine_of("train.seed=5"))
    torch.rand(17)
    engine = engine_of("train.seed=5", "train.precision=bf16")
    assert_identical(state_of(engine), first)
    engine.initialise()
    assert_identical(state_of(engine), first)
    other = state_of(engine_of("train.seed=6"))
    assert not torch.equal(other["model.embed_tokens.weight"], first["model.embed_tokens.weight"])


def test_the_largest_seed_works(engine_of: EngineOf) -> None:
    assert torch.isfinite(engine_of(f"train.seed={2**63 - 1}").own["lm_head.weight"]).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_batch_without_targets_changes_nothing(engine_of: EngineOf, batch_of: BatchOf, precision: str) -> None:
    """Weight decay and momentum from the step before would; the step says why it was skipped."""
    engine = engine_of(f"train.precision={precision}", **TINY)
    engine.train_step(batch_of(2, 2), 1e-2)
    before = state_of(engine)
    result = engine.train_step(batch_of(2, 2, ignored=1.1), 1e-2)
    assert result.skipped == NOTHING_SUPERVISED and result.supervised == 0
    assert math.isnan(result.loss) and result.gradient_norm == 0
    assert_identical(state_of(engine), before)
    assert engine.train_step(batch_of(2, 2), 1e-2).skipped is None


# Compilation


@pytest.mark.slow
def test_compiling_changes_no_loss(engine_of: EngineOf, batch_of: BatchOf) -> None:
    """Documents, dropout, accumulation and evaluation included; no breaks in the graph, the same losses within 1e-4."""
    batches = []
    restarted = torch.where(torch.arange(32) < 11, torch.arange(32), torch.arange(32) - 11)
    for step in range(4):
        batch = batch_of(2, 2, 32, ignored=0.2, seed=step)
        documents = (torch.arange(32) >= 11).int()
        batch |= {"documents": documents.expand(2, 2, -1), "positions": restarted.expand(2, 2, -1)}
        batches.append(batch | {"samples": 4 * step + torch.arange(4).view(2, 2)})
    losses = []
    for compiled in ("false", "true"):
        torch._dynamo.reset()
        counters.clear()
        engine = engine_of(f"train.compile={compiled}", "train.dropout=0.1", **TINY)
        curve = [engine.train_step(batch, 1e-2).loss for batch in batches]
        nats, supervised = engine.evaluate({name: tensor[0] for name, tensor in batches[0].items() if name != "samples"})
        losses.append([*curve, nats / supervised])
    # One graph for training and one for evaluation, each whole and compiled once.
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[0][-1] < losses[0][0]


# Device


def test_cuda_that_is_not_there_is_an_error(engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"train\.device: cuda.*use train\.device=cpu"):
        engine_of("train.device=cuda")
    assert engine_of("train.device=auto").device == "cpu"


def test_what_the_engine_says_of_itself(engine_of: EngineOf) -> None:
    engine = engine_of()
    assert engine.versions()["torch"] == torch.__version__
    assert engine.device_memory() is None
    peak = engine.matmul_peak()
    assert peak is not None and 1e9 < peak < 1e15  # one slow core, and more than any there is


def test_emulated_arithmetic_has_no_peak(engine_of: EngineOf) -> None:
    assert engine_of("train.precision=fp16").matmul_peak() is None
