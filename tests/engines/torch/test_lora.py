"""Adapters: PEFT computes the same with them, the base stays, merging and resuming change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from danlu.engines.torch.engine import TorchEngine
from danlu.errors import UserError
from danlu.model.adapters import is_adapter
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe import parse
from danlu.recipe.resolve import resolve_shape

BatchOf = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers' own making."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ModelShape(vocab_size=96, layers=2, hidden_size=32, ffn_size=48, heads=4, kv_heads=2, tied_embeddings=True)
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("base")
    config = to_hugging_face(shape, bos_token_id=None, eos_token_id=None)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(folder)
    return folder


def engine_of(base: Path, *overrides: str) -> TorchEngine:
    tree: dict[str, Any] = {
        "name": "t",
        "model": {"hugging_face": str(base)},
        "data": {"sources": [{"path": "x.txt"}], "tokenizer": {"path": "x"}},
        "train": {"device": "cpu", "lora": {"rank": 4, "alpha": 6}},
    }
    recipe = parse(tree, list(overrides))
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.import_weights(base)
    return engine


@pytest.fixture
def trained(base: Path, batch_of: BatchOf) -> TorchEngine:
    engine = engine_of(base)
    for step in range(3):
        engine.train_step(batch_of(2, 2, seed=step), 1e-2)
    return engine


def logits(engine: TorchEngine, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        made: torch.Tensor = engine.model(batch["inputs"][0])
    return made


def test_an_untrained_adapter_changes_nothing(base: Path, batch_of: BatchOf) -> None:
    from transformers import AutoModelForCausalLM

    batch = batch_of()
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(logits(engine_of(base), batch), theirs(batch["inputs"][0]).logits, atol=1e-5)


def test_only_adapters_are_trained_and_have_states(base: Path, trained: TorchEngine) -> None:
    stored = load_file(base / "model.safetensors")
    fresh = engine_of(base)
    for name, parameter in trained.own.items():
        if is_adapter(name):
            assert not torch.equal(parameter, fresh.own[name]), name
        else:
            assert torch.equal(parameter, stored[name]), name
    with_states = {name.split(".", 1)[1] for name, _, _ in trained.optimizer.tensors(set(trained.own))}
    assert with_states == {name for name in trained.own if is_adapter(name)}


def test_peft_computes_the_same(base: Path, trained: TorchEngine, batch_of: BatchOf, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trained.export_adapter(tmp_path)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path).eval()
    batch = batch_of(seed=9)
    with torch.no_grad():
        assert torch.allclose(logits(trained, batch), theirs(batch["inputs"][0]).logits, atol=1e-5)


def test_a_step_is_that_of_peft(base: Path, batch_of: BatchOf, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    engine = engine_of(base, "train.optimizer.gradient_clipping=0")
    engine.export_adapter(tmp_path)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path, is_trainable=True
    )
    settings = engine.recipe.train.optimizer
    optimizer = torch.optim.AdamW(
        [each for each in theirs.parameters() if each.requires_grad],
        lr=1e-2,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    for step in range(3):
        batch = batch_of(1, 4, seed=step)
        wanted = theirs(batch["inputs"][0]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(wanted, batch["targets"][0].flatten())
        assert engine.train_step(batch, 1e-2).loss == pytest.approx(float(loss.detach()), rel=1e-5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_merged_weights_are_the_same_model(trained: TorchEngine, batch_of: BatchOf, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    before = {name: parameter.clone() for name, parameter in trained.own.items()}
    trained.export_weights(tmp_path, "fp32")
    config = to_hugging_face(trained.shape, bos_token_id=None, eos_token_id=None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = batch_of(seed=9)
    with torch.no_grad():
        assert torch.allclose(logits(trained, batch), theirs(batch["inputs"][0]).logits, atol=1e-5)
    assert all(torch.equal(before[name], parameter) for name, parameter in trained.own.items())


def test_a_checkpoint_goes_on_bit_for_bit(base: Path, trained: TorchEngine, batch_of: BatchOf, tmp_path: Path) -> None:
    state = trained.save(tmp_path)
    again = engine_of(base)
    again.load(tmp_path, state)
    batch = batch_of(2, 2, seed=7)
    assert again.train_step(batch, 1e-2) == trained.train_step(batch, 1e-2)


def test_a_checkpoint_with_adapters_is_no_plain_one(base: Path, trained: TorchEngine, tmp_path: Path) -> None:
    trained.save(tmp_path)
    with pytest.raises(UserError, match="unknown"):
        engine_of(base, "train.lora=null").load_weights(tmp_path)


def test_targets(base: Path) -> None:
    engine = engine_of(base, "train.lora.targets=[q_proj, model.layers.1.mlp.*]")
    found = {name.rsplit(".", 2)[0] for name in engine.trained}
    layers = {f"model.layers.{n}.self_attn.q_proj" for n in range(2)}
    assert found == layers | {f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")}
    with pytest.raises(UserError, match="'c_attn' names no matrix of the model; it has down_proj, gate_proj"):
        engine_of(base, "train.lora.targets=[c_attn]")


def test_what_cannot_be() -> None:
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}, "train": {"lora": {}}}
    with pytest.raises(UserError, match=r"name it in model\.hugging_face"):
        parse(tree, [])
