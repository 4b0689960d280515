"""Adapters: PEFT computes the same with them, the base stays, merging and resuming change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from danlu.engines.torch.dropout import Dropout, Keys, elsewhere
from danlu.engines.torch.engine import TorchEngine
from danlu.errors import UserError
from danlu.model.adapters import is_adapter
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe import offered, parse
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


@pytest.fixture(params=[False, True], ids=["lora", "dora"])
def trained(request: pytest.FixtureRequest, base: Path, batch_of: BatchOf) -> TorchEngine:
    engine = engine_of(base, f"train.lora.dora={request.param}")
    for step in range(3):
        engine.train_step(batch_of(2, 2, seed=step), 1e-2)
    return engine


def like(engine: TorchEngine, base: Path) -> TorchEngine:
    assert engine.recipe.train.lora is not None
    return engine_of(base, f"train.lora.dora={engine.recipe.train.lora.dora}")


def logits(engine: TorchEngine, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        made: torch.Tensor = engine.model(batch["inputs"][0])
    return made


def test_an_untrained_adapter_changes_nothing(base: Path, batch_of: BatchOf) -> None:
    from transformers import AutoModelForCausalLM

    batch = batch_of()
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for dora in ("false", "true"):
            ours = logits(engine_of(base, f"train.lora.dora={dora}", "train.lora.dropout=0.5"), batch)
            assert torch.allclose(ours, theirs(batch["inputs"][0]).logits, atol=1e-5)


def test_only_adapters_are_trained_and_have_states(base: Path, trained: TorchEngine) -> None:
    stored = load_file(base / "model.safetensors")
    fresh = like(trained, base)
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


def with_masks_of(theirs: Any, samples: torch.Tensor, rate: float, seed: int) -> None:
    """PEFT's dropout, at its places, with the masks that danlu draws."""
    kinds = [f"self_attn.{kind}_proj" for kind in "qkvo"] + [f"mlp.{kind}_proj" for kind in ("gate", "up", "down")]
    for layer in range(2):
        for place, kind in enumerate(kinds, 1):
            module = theirs.get_submodule(f"base_model.model.model.layers.{layer}.{kind}")

            def masked(x: torch.Tensor, layer: int = layer, place: int = place) -> torch.Tensor:
                keys = elsewhere(Keys(seed)(samples, x.shape[1], layer + 1), place)
                return x * Dropout(rate).keep(keys, 0, x.shape[2]) / (1 - rate)

            module.lora_dropout["default"].forward = masked


@pytest.mark.parametrize("how", ["train.lora.dora=false", "train.lora.dora=true", "train.lora.dropout=0.5"])
def test_a_step_is_that_of_peft(base: Path, batch_of: BatchOf, tmp_path: Path, how: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    engine = engine_of(base, "train.optimizer.gradient_clipping=0", "train.optimizer.weight_decay=0", how)
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
        batch = batch_of(1, 4, seed=step) | {"samples": 4 * step + torch.arange(4)[None]}
        if "dropout" in how:
            with_masks_of(theirs, batch["samples"][0], 0.5, engine.recipe.train.seed)
        wanted = theirs(batch["inputs"][0]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(wanted, batch["targets"][0].flatten())
        loss.backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in theirs.parameters() if each.grad is not None])
        made = engine.train_step(batch, 1e-2)
        assert made.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert made.gradient_norm == pytest.approx(float(norm), rel=1e-4)
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
    again = like(trained, base)
    again.load(tmp_path, state)
    batch = batch_of(2, 2, seed=7)
    assert again.train_step(batch, 1e-2) == trained.train_step(batch, 1e-2)


def test_a_checkpoint_with_adapters_is_no_plain_one(base: Path, trained: TorchEngine, tmp_path: Path) -> None:
    trained.save(tmp_path)
    with pytest.raises(UserError, match="unknown"):
        engine_of(base, "train.lora=null").load_weights(tmp_path)


def test_an_int8_base_is_that_of_its_rounded_weights(base: Path, batch_of: BatchOf, tmp_path: Path) -> None:
    """Loss and gradients beside float weights of the same values; a checkpoint holds the rounded ones and goes on bit for bit."""
    engine = engine_of(base, "train.lora.base=int8", "train.lora.dora=true")
    stored = load_file(base / "model.safetensors")
    plain = dict(stored)
    for name, numbers in engine.own.items():
        if numbers.dtype == torch.int8:
            rows = stored[name].double()
            scale = rows.abs().amax(1, keepdim=True) / 127
            plain[name] = (numbers.double() * scale).float()
            assert (plain[name] - rows).abs().div(scale).max() <= 0.5 + 1e-4, name
    assert sum(not torch.equal(plain[name], stored[name]) for name in stored) == 2 * 7
    folder = tmp_path / "float"
    folder.mkdir()
    save_file(plain, folder / "model.safetensors")
    (folder / "config.json").write_text((base / "config.json").read_text())
    wanted = engine_of(folder, "train.lora.dora=true")
    for step in range(3):
        ours, theirs = (each.train_step(batch_of(2, 2, seed=step), 1e-2) for each in (engine, wanted))
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-5)
    held = [each.held_bytes()["parameters"] for each in (engine, wanted)]
    matrices = sum(tensor.numel() for tensor in engine.own.values() if tensor.dtype == torch.int8)
    rows = sum(len(tensor) for tensor in engine.own.values() if tensor.dtype == torch.int8)
    assert held[1] - held[0] == 3 * matrices - 4 * rows
    (place := tmp_path / "saved").mkdir()
    state = engine.save(place)
    again = engine_of(base, "train.lora.base=int8", "train.lora.dora=true")
    again.load(place, state)
    assert again.train_step(batch_of(2, 2, seed=7), 1e-2) == engine.train_step(batch_of(2, 2, seed=7), 1e-2)
    with pytest.raises(UserError, match="is int8, so quantized"):
        engine_of(base).load_weights(place)


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
    with pytest.raises(UserError, match=r"train\.lora\.base: int8 weights cannot be offloaded to disk; leave memory"):
        offloaded = ["memory.offload_parameters=disk", "parallel={data: 2, zero_stage: 3}", "data.tokenizer.path=x"]
        parse(tree | {"model": {"hugging_face": "x"}}, ["train.lora.base=int8", *offloaded])
    for setting in ("base=int8", "dropout=0.1", "dora=true"):
        overrides = ["data.tokenizer.path=x", "train.engine=paddle", f"train.lora.{setting}"]
        recipe = parse(tree | {"model": {"hugging_face": "x"}}, overrides)
        with pytest.raises(UserError, match=r"train\.lora\.\w+: .* is not part of the paddle engine yet; use train\.engine=tor"):
            offered.check(recipe)
