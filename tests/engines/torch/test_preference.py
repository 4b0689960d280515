"""DPO beside the paper's formula on transformers' log-probabilities in float64, one answer a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from danlu.engines.torch import loss as module
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.log_probabilities import linear_log_probabilities
from danlu.engines.torch.loss import Head
from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe import parse
from danlu.recipe.resolve import resolve_shape

VOCABULARY, LENGTH = 96, 24
Answer = tuple[list[int], int]
"""Tokens, and how many of them are the prompt."""


def test_log_probabilities_have_the_gradient_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * 50 * 4)
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 50 * 4)
    random = torch.Generator().manual_seed(2)
    hidden = torch.randn(19, 16, generator=random, requires_grad=True)
    weight = torch.randn(50, 16, generator=random, requires_grad=True)
    targets = torch.randint(0, 50, (19,), generator=random)
    targets[::5] = -100
    factor = torch.randn(19, generator=random)
    made = linear_log_probabilities(Head(hidden, weight), targets)
    (made * factor).sum().backward()
    exact = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    wanted = -F.cross_entropy(exact[0] @ exact[1].t(), targets, reduction="none", ignore_index=-100)
    (wanted * factor).sum().backward()
    assert torch.allclose(made.double(), wanted, rtol=1e-5, atol=1e-6)
    for got, want in zip((hidden.grad, weight.grad), (exact[0].grad, exact[1].grad), strict=True):
        assert got is not None and want is not None
        assert (got.double() - want).abs().max() <= 5e-6 * want.abs().max()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers' own making."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ModelShape(vocab_size=VOCABULARY, layers=2, hidden_size=32, ffn_size=48, heads=4, kv_heads=2, tied_embeddings=True)
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(LlamaConfig(**to_hugging_face(shape, bos_token_id=None, eos_token_id=None))).save_pretrained(folder)
    return folder


def engine_of(base: Path, *overrides: str) -> TorchEngine:
    tree: dict[str, Any] = {
        "name": "t",
        "model": {"hugging_face": str(base)},
        "data": {"sources": [{"path": "x.txt"}], "tokenizer": {"path": "x"}, "sequence_length": LENGTH},
        "train": {"device": "cpu", "objective": "dpo", "dpo": {"beta": 0.3}},
    }
    recipe = parse(tree, list(overrides))
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.import_weights(base)
    return engine


def pairs(count: int, seed: int) -> list[tuple[Answer, Answer]]:
    random = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        prompt = torch.randint(0, VOCABULARY, (2 + number % 2,), generator=random).tolist()
        answers = [torch.randint(0, VOCABULARY, (size,), generator=random).tolist() for size in (2 + number % 3, 3)]
        made.append(((prompt + answers[0], len(prompt)), (prompt + answers[1], len(prompt))))
    return made


def packed(rows: list[list[tuple[Answer, Answer]]]) -> dict[str, Tensor]:
    """(1, rows, t): the pairs of each row behind one another."""
    batch = {
        name: torch.zeros(1, len(rows), LENGTH, dtype=torch.long) for name in ("inputs", "targets", "positions", "documents")
    }
    batch["targets"][:] = -100
    for row, told in enumerate(rows):
        at = 0
        for number, (tokens, prompt) in enumerate(answer for pair in told for answer in pair):
            size = len(tokens)
            here = slice(at, at + size)
            batch["inputs"][0, row, here] = torch.tensor(tokens)
            batch["targets"][0, row, at + prompt - 1 : at + size - 1] = torch.tensor(tokens[prompt:])
            batch["positions"][0, row, here] = torch.arange(size)
            batch["documents"][0, row, here] = number
            at += size
        batch["documents"][0, row, at:] = 2 * len(told) - 1
    batch["documents"] = batch["documents"].int()
    return batch


def log_probability(model: Any, answer: Answer) -> Tensor:
    tokens, prompt = answer
    logits = model(torch.tensor([tokens])).logits[0, prompt - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens[prompt:])[:, None]).sum()


def truth(policy: Any, reference: Any, told: list[tuple[Answer, Answer]], smoothing: float) -> dict[str, Tensor]:
    rewards = []
    for chosen, rejected in told:
        with torch.no_grad():
            before = [log_probability(reference, each) for each in (chosen, rejected)]
        rewards.append(torch.stack([log_probability(policy, each) for each in (chosen, rejected)]) - torch.stack(before))
    both = 0.3 * torch.stack(rewards)
    margin = both[:, 0] - both[:, 1]
    loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
    return {
        "loss": loss.mean(),
        "margin": margin.mean(),
        "accuracy": (margin > 0).double().mean(),
        "chosen_reward": both[:, 0].mean(),
    }


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_packed_pairs_have_the_loss_and_gradient_of_the_formula(base: Path, tmp_path: Path, smoothing: float) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_of(base, f"train.dpo.label_smoothing={smoothing}", "train.optimizer.gradient_clipping=0")
    told = pairs(5, seed=1)
    batch = packed([told[:2], told[2:3], told[3:]])
    first = engine.train_step(packed([pairs(2, seed=4)]), 1e-3)
    assert first.loss == pytest.approx(0.6931472) and first.measured["margin"] == pytest.approx(0, abs=1e-6)
    engine.export_weights(tmp_path, "fp32")
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    policy, reference = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float64) for each in (tmp_path, base))
    wanted = truth(policy, reference, told, smoothing)
    gradients = torch.autograd.grad(wanted["loss"], list(policy.parameters()))
    norm = torch.stack([each.square().sum() for each in gradients]).sum().sqrt()
    held = {name: tensor[0] for name, tensor in batch.items()}
    total, count, sums = engine.judge(held)
    assert count == 5 and total / 5 == pytest.approx(wanted["loss"].item(), rel=1e-5)
    assert sums["margin"] / 5 == pytest.approx(wanted["margin"].item(), rel=1e-4)
    result = engine.train_step(batch, 1e-3)
    assert (result.loss, result.supervised) == (pytest.approx(wanted["loss"].item(), rel=1e-5), 5)
    assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    for name in ("margin", "accuracy", "chosen_reward"):
        assert result.measured[name] == pytest.approx(wanted[name].item(), rel=1e-4, abs=1e-6)


def test_with_adapters_the_model_without_them_is_the_reference(base: Path) -> None:
    """The same loss as with a second model, which adapters of another start do not change."""
    batches = [packed([pairs(2, seed), pairs(1, seed + 9)]) for seed in range(3)]
    engine = engine_of(base, "train.lora.rank=4")
    engine.train_step(batches[0], 1e-2)
    second = engine_of(base, "train.lora.rank=4")
    second.objective.reference = engine_of(base).objective.reference  # type: ignore[attr-defined]
    second.train_step(batches[0], 1e-2)
    assert engine.train_step(batches[1], 1e-2).loss == pytest.approx(second.train_step(batches[1], 1e-2).loss, rel=1e-6)
    assert engine.train_step(batches[2], 1e-2).loss != pytest.approx(0.6931472, rel=1e-4)


def test_a_resume_goes_on_bit_for_bit(base: Path, tmp_path: Path) -> None:
    engine = engine_of(base)
    engine.train_step(packed([pairs(2, 0)]), 1e-2)
    state = engine.save(tmp_path)
    again = engine_of(base)
    again.load(tmp_path, state)
    batch = packed([pairs(2, 1)])
    assert again.train_step(batch, 1e-2) == engine.train_step(batch, 1e-2)


def test_what_cannot_be(base: Path) -> None:
    with pytest.raises(UserError, match=r"data\.document_mask: false would let an answer see the other"):
        engine_of(base, "data.document_mask=false")
    with pytest.raises(UserError, match="dpo starts from a trained model"):
        engine_of(base, "model={preset: llama-5m}")
