"""Distillation beside float64 on whole logits, and beside transformers' models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from danlu.engines.torch import loss as module
from danlu.engines.torch.distillation import from_logits, mixed
from danlu.engines.torch.dropout import Keys
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.loss import Head, linear_loss
from danlu.engines.torch.offline import from_likeliest
from danlu.engines.torch.on_policy import uniform
from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe import parse
from danlu.recipe.objective_sections import DistillSection
from danlu.recipe.resolve import resolve_shape

BatchOf = Callable[..., dict[str, Tensor]]
ROWS, HIDDEN, VOCABULARY = 19, 16, 50
KINDS = ("forward_kl", "reverse_kl", "jensen_shannon")


def truth(student: Tensor, teacher: Tensor, targets: Tensor, settings: DistillSection) -> tuple[Tensor, Tensor]:
    """(objective, divergence) of logits, in whatever precision they have, by the divergences' definitions."""
    keep = targets != -100
    t = settings.temperature
    p, q = torch.softmax(teacher[keep] / t, -1), torch.softmax(student[keep] / t, -1)
    m = (p + q) / 2
    kl = lambda a, b: (a * (a / b).log()).sum()  # noqa: E731
    apart = {"forward_kl": kl(p, q), "reverse_kl": kl(q, p), "jensen_shannon": (kl(p, m) + kl(q, m)) / 2}[settings.divergence]
    plain = F.cross_entropy(student, targets, reduction="sum", ignore_index=-100)
    return settings.cross_entropy * plain + (1 - settings.cross_entropy) * t * t * apart, apart


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.5), (2.5, 0.25), (0.7, 0.0), (3.0, 1.0)])
def test_value_and_gradient_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, kind: Any, temperature: float, share: float
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * VOCABULARY * 4)  # four rows a chunk, three a block
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * VOCABULARY * 4)
    random = torch.Generator().manual_seed(5)
    hidden = torch.randn(ROWS, HIDDEN, generator=random, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=random, requires_grad=True)
    teacher = 2 * torch.randn(ROWS, VOCABULARY, generator=random)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=random)
    targets[::4] = -100
    settings = DistillSection(teacher="x", divergence=kind, temperature=temperature, cross_entropy=share)
    sums, scale = torch.zeros(3), 0.3
    head = Head(hidden, weight)

    def of_logits(logits: Tensor, rows: slice) -> Tensor:
        apart = from_logits(teacher[rows], head, settings)
        return scale * mixed(logits, apart, targets[rows], head, settings, scale, sums)

    total = linear_loss(head, of_logits)
    total.backward()
    exact = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    wanted, apart = truth(exact[0] @ exact[1].t(), teacher.double(), targets, settings)
    (scale * wanted).backward()
    assert total.item() == pytest.approx(scale * wanted.item(), rel=2e-6)
    assert sums[1].item() == pytest.approx(apart.item(), rel=2e-6)
    for got, want in zip((hidden.grad, weight.grad), (exact[0].grad, exact[1].grad), strict=True):
        assert got is not None and want is not None
        assert (got.double() - want).abs().max() <= 5e-6 * want.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_of_few_tokens_the_others_count_as_one(kind: Any) -> None:
    """Beside float64 on the distribution over k + 1 things, whatever part of the vocabulary the others are."""
    random, k, t = torch.Generator().manual_seed(6), 5, 1.7
    logits = 2 * torch.randn(ROWS, VOCABULARY, generator=random)
    teacher = 2 * torch.randn(ROWS, VOCABULARY, generator=random)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=random)
    targets[::4] = -100
    kept, tokens = torch.log_softmax(teacher / t, -1).topk(k, -1)
    logs = torch.cat([kept, (1 - kept.exp().sum(-1, keepdim=True)).log()], -1).half()
    settings = DistillSection(teacher="x", divergence=kind, temperature=t, cross_entropy=0.25)
    head, sums, made = Head(torch.zeros(ROWS, 1), torch.zeros(VOCABULARY, 1)), torch.zeros(3), logits.clone()
    total = mixed(made, from_likeliest(tokens.int(), logs, head, settings), targets, head, settings, 1.0, sums)

    exact = logits.double().requires_grad_()
    keep = targets != -100
    q = torch.softmax(exact / t, -1)[keep]
    of_kept = q.gather(1, tokens[keep])
    q_few = torch.cat([of_kept, q.sum(-1, keepdim=True) - of_kept.sum(-1, keepdim=True)], -1)
    p_few = torch.softmax(logs[keep].double(), -1)
    _, apart = truth(t * q_few.log(), t * p_few.log(), torch.zeros(len(q_few), dtype=torch.long), settings)
    plain = F.cross_entropy(exact, targets, reduction="sum", ignore_index=-100)
    wanted = 0.25 * plain + 0.75 * t * t * apart
    wanted.backward()
    assert total.item() == pytest.approx(wanted.item(), rel=2e-6) and sums[1].item() == pytest.approx(apart.item(), rel=5e-6)
    assert exact.grad is not None and (made - exact.grad).abs().max() <= 5e-6 * exact.grad.abs().max()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers' own making, wider and deeper than its student."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ModelShape(vocab_size=96, layers=3, hidden_size=48, ffn_size=64, heads=4, tied_embeddings=True)
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("teacher")
    LlamaForCausalLM(LlamaConfig(**to_hugging_face(shape, bos_token_id=None, eos_token_id=None))).save_pretrained(folder)
    return folder


def engine_of(teacher: Path, *overrides: str) -> TorchEngine:
    tree: dict[str, Any] = {
        "name": "t",
        "model": {"layers": 2, "hidden_size": 32, "ffn_size": 48, "heads": 4, "vocab_size": 96},
        "data": {"sources": [{"path": "x.txt"}], "tokenizer": {"path": "x"}},
        "train": {"device": "cpu", "objective": "distill", "distill": {"teacher": str(teacher), "temperature": 2.0}},
    }
    recipe = parse(tree, list(overrides))
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.initialise()
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_gradient_of_both_models(teacher: Path, batch_of: BatchOf, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_of(teacher, f"train.distill.divergence={kind}")
    batch = batch_of(2, 2, seed=1)
    batch["targets"][0, 0, :5] = -100
    theirs = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    flat = batch["inputs"].flatten(0, 1)
    with torch.no_grad():
        wanted = theirs(flat).logits.flatten(0, 1)
    settings = engine.recipe.train.distill
    assert settings is not None
    targets = batch["targets"].flatten()
    logits = engine.model(flat).flatten(0, 1)
    loss, apart = truth(logits, wanted, targets, settings)
    count = int((targets != -100).sum())
    gradients = torch.autograd.grad(loss / count, list(engine.trained.values()))
    norm = torch.sqrt(torch.stack([each.square().sum() for each in gradients]).sum())
    result = engine.train_step(batch, 1e-3)
    assert result.gradient_norm == pytest.approx(float(norm), rel=1e-4)
    assert result.loss == pytest.approx(float(F.cross_entropy(logits, targets, ignore_index=-100).detach()), rel=1e-5)
    assert result.measured == {
        "objective": pytest.approx(loss.item() / count, rel=1e-5),
        "divergence": pytest.approx(apart.item() / count, rel=1e-4),
    }


def test_a_teacher_that_is_its_own_student_has_nothing_to_say(teacher: Path, batch_of: BatchOf) -> None:
    recipe = parse(
        {
            "name": "t",
            "model": {"hugging_face": str(teacher)},
            "data": {"sources": [{"path": "x.txt"}], "tokenizer": {"path": "x"}},
            "train": {"device": "cpu", "objective": "distill", "distill": {"teacher": str(teacher), "cross_entropy": 0.0}},
        },
        [],
    )
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.import_weights(teacher)
    result = engine.train_step(batch_of(1, 2), 1e-3)
    assert result.measured["divergence"] == pytest.approx(0, abs=1e-6)
    assert result.gradient_norm == pytest.approx(0, abs=1e-5)


def test_validation_is_the_cross_entropy_and_a_resume_goes_on_bit_for_bit(
    teacher: Path, batch_of: BatchOf, tmp_path: Path
) -> None:
    engine = engine_of(teacher)
    engine.train_step(batch_of(2, 2), 1e-2)
    state = engine.save(tmp_path)
    held = {name: tensor[0] for name, tensor in batch_of(1, 4, seed=8).items()}
    loss, count, measured = engine.judge(held)
    nats, supervised = engine.evaluate(held)
    assert (loss, count) == (pytest.approx(nats, rel=1e-6), supervised) and measured["divergence"] > 0
    again = engine_of(teacher)
    again.load(tmp_path, state)
    batch = batch_of(2, 2, seed=7)
    assert again.train_step(batch, 1e-2) == engine.train_step(batch, 1e-2)


def drawn(engine: TorchEngine, made: dict[str, Tensor]) -> None:
    """Each token is where its number falls among the probabilities of one whole pass."""
    rows = {name: made[name].flatten(0, 1) for name in made}
    with torch.no_grad():
        logits = engine.model(rows["inputs"], rows["positions"], rows.get("documents"))
    mass = torch.softmax(logits.double(), -1).cumsum(-1)
    told = uniform(Keys(engine.recipe.train.seed)(rows["samples"], rows["inputs"].shape[1] + 1, -2))[:, 1:]
    targets, half = rows["targets"].clamp_min(0), rows["inputs"].shape[1] // 2
    high = mass.gather(2, targets[..., None])[..., 0]
    low = torch.where(targets == 0, 0.0, mass.gather(2, (targets - 1).clamp_min(0)[..., None])[..., 0])
    right = (low - 1e-6 <= told) & (told <= high + 1e-6)
    assert right[rows["own"]].view(-1, 2 * half)[:, half - 1 :].all()


def test_what_a_student_writes_itself_is_judged_by_the_teacher_alone(teacher: Path, batch_of: BatchOf) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_of(teacher, "train.distill.on_policy=0.5", "train.distill.divergence=reverse_kl")
    batch = batch_of(2, 4, seed=1) | {"samples": torch.arange(8).view(2, 4)}
    batch["targets"][0, 1, :5] = -100
    made = engine.objective.rewritten(batch)
    own, half = made["own"].flatten(0, 1)[:, 0], batch["inputs"].shape[-1] // 2
    assert 0 < own.sum() < 8
    rows = {name: made[name].flatten(0, 1) for name in ("inputs", "targets", "positions")}
    for name in ("inputs", "targets"):
        assert torch.equal(rows[name][~own], batch[name].flatten(0, 1)[~own])
    assert torch.equal(rows["inputs"][own][:, :half], batch["inputs"].flatten(0, 1)[own][:, :half])
    assert torch.equal(rows["targets"][own][:, half - 1 : -1], rows["inputs"][own][:, half:])
    assert (rows["targets"][own][:, : half - 1] == -100).all()
    drawn(engine, made)
    columns = torch.arange(2 * half).expand(2, 4, -1)
    drawn(engine, engine.objective.rewritten(batch | {"documents": (columns > 5).int(), "positions": columns % 6}))
    logits = engine.model(rows["inputs"], rows["positions"])
    theirs = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(rows["inputs"], position_ids=rows["positions"]).logits
    settings = engine.recipe.train.distill
    assert settings is not None
    count = int((rows["targets"] != -100).sum())
    given, _ = truth(logits[~own].flatten(0, 1), wanted[~own].flatten(0, 1), rows["targets"][~own].flatten(), settings)
    alone = settings.model_copy(update={"cross_entropy": 0.0})
    judged, _ = truth(logits[own].flatten(0, 1), wanted[own].flatten(0, 1), rows["targets"][own].flatten(), alone)
    gradients = torch.autograd.grad((given + judged) / count, list(engine.trained.values()))
    norm = torch.sqrt(torch.stack([each.square().sum() for each in gradients]).sum())
    result = engine.train_step(batch, 1e-3)
    assert result.gradient_norm == pytest.approx(float(norm), rel=1e-4)
    assert result.measured["objective"] == pytest.approx(((given + judged) / count).item(), rel=1e-5)
    plain = F.cross_entropy(logits[~own].flatten(0, 1), rows["targets"][~own].flatten(), ignore_index=-100)
    assert result.loss == pytest.approx(plain.item(), rel=1e-5)


def test_what_cannot_be(teacher: Path, batch_of: BatchOf, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.distill: distill needs a teacher"):
        engine_of(teacher, "train.distill=null")
    with pytest.raises(UserError, match=r"parallel\.pipeline: 2 has no place yet for the second model of distill"):
        engine_of(teacher, "parallel.pipeline=2", "memory.micro_batch=1")
    with pytest.raises(
        UserError, match=r"train\.distill\.on_policy: 0\.5 has the model write .* goes with no train\.distill\.cache"
    ):
        engine_of(teacher, "train.distill.on_policy=0.5", "train.distill.cache=x")
    with pytest.raises(UserError, match=r"train\.distill\.teacher: there is no folder"):
        engine_of(tmp_path / "none").train_step(batch_of(), 1e-3)
    with pytest.raises(UserError, match=r"the teacher; give data\.tokenizer\.path"):
        engine_of(teacher, "data.tokenizer.path=null")
    config = json.loads((teacher / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 90}))
    with pytest.raises(UserError, match=r"90 rows of embeddings and the model 96"):
        engine_of(tmp_path).train_step(batch_of(), 1e-3)
