"""µP as danlu has it, in initial values and learning rates alone, beside the paper's form with factors in the forward pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

from danlu.engines.torch.coordinates import moved
from danlu.engines.torch.engine import TorchEngine
from danlu.export import to_hugging_face
from danlu.model.mup import Mup
from danlu.model.shape import ModelShape
from danlu.recipe import parse
from danlu.widths import growth, widened

WIDER, STEPS = 4, 6
SMALL = {"vocab_size": 96, "layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 2, "max_sequence_length": 64}
MUP = ("model.mup.base_hidden_size=16", "model.mup.base_head_size=8")


def wide(tied: bool) -> ModelShape:
    """Four times as wide as the base, with heads twice as large and twice as many."""
    size = {"hidden_size": 64, "ffn_size": 128, "heads": 4}
    return ModelShape(**SMALL | size, tied_embeddings=tied)


def batch() -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 96, (1, 4, 17), generator=torch.Generator().manual_seed(3))
    return {"inputs": tokens[..., :-1], "targets": tokens[..., 1:]}


def papers_model(shape: ModelShape, engine: TorchEngine) -> GraniteForCausalLM:
    """A Llama with the factors of table 8 in its forward pass and none in its weights, that starts from the same function."""
    config = GraniteConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_sequence_length,
        rms_norm_eps=shape.norm_epsilon,
        tie_word_embeddings=shape.tied_embeddings,
        logits_scaling=WIDER,  # divides
        attention_multiplier=8**0.5 / 16,  # 1 / d, and 1 / sqrt(d) at the base's 8
    )
    model = GraniteForCausalLM(config)
    weights = {name: tensor.detach().clone() for name, tensor in engine.parameters.items()}
    for name in weights:
        if "q_proj" in name:
            weights[name] *= 2**0.5
    if shape.tied_embeddings:
        weights["model.norm.weight"] *= WIDER
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    else:
        weights["lm_head.weight"] *= WIDER
    model.load_state_dict(weights)
    return model


def papers_optimizer(model: torch.nn.Module, rate: float, decay: float) -> torch.optim.AdamW:
    """Table 8 under Adam, as the authors' own package has it: rate 1 / n, decay n for what is wide on both sides."""
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        groups["_proj." in name, parameter.ndim > 1].append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": group,
                "lr": rate / WIDER if hidden else rate,
                "weight_decay": (decay * WIDER if hidden else decay) * matrix,
            }
            for (hidden, matrix), group in groups.items()
        ],
        betas=(0.9, 0.95),
        eps=1e-15,
    )


@pytest.mark.parametrize("tied", [False, True])
def test_it_trains_as_the_papers_form_does(engine_of: Callable[..., TorchEngine], tied: bool) -> None:
    """The same losses, although no factor is left in the forward pass; so an export needs nothing either."""
    shape = wide(tied)
    settings = ("train.optimizer.epsilon=1e-15", "train.optimizer.gradient_clipping=0", "train.optimizer.weight_decay=1.0")
    engine = engine_of(*MUP, *settings, shape=shape)
    model = papers_model(shape, engine)
    optimizer, data = papers_optimizer(model, 1e-2, 1.0), batch()
    ours, theirs = [], []
    for _ in range(STEPS):
        ours.append(engine.train_step(data, 1e-2).loss)
        logits = model(input_ids=data["inputs"][0]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data["targets"].flatten())
        theirs.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert ours == pytest.approx(theirs, rel=2e-5)
    assert ours[-1] < 0.9 * ours[0]


@pytest.mark.parametrize("tied", [False, True])
def test_an_export_has_the_same_logits_in_transformers(engine_of: Callable[..., TorchEngine], tmp_path: Path, tied: bool) -> None:
    import json

    shape, data = wide(tied), batch()
    engine = engine_of(*MUP, shape=shape)
    engine.train_step(data, 1e-2)
    engine.export_weights(tmp_path, "fp32")
    config = to_hugging_face(shape, bos_token_id=None, eos_token_id=None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(engine.model(data["inputs"][0]), model(data["inputs"][0]).logits, rtol=1e-4, atol=1e-5)


def test_without_it_every_parameter_has_the_same_rate(engine_of: Callable[..., TorchEngine]) -> None:
    engine = engine_of(shape=wide(False))
    engine.train_step(batch(), 1e-2)
    assert {group["lr"] for group in engine.optimizer.adamw.param_groups} == {1e-2}
    assert {group["weight_decay"] for group in engine.optimizer.adamw.param_groups} == {0.0, 0.1}


@pytest.mark.parametrize("tied", [False, True])
def test_a_few_steps_move_a_wide_model_as_far_as_a_narrow_one(tied: bool) -> None:
    """The coordinate check: 8 times the width changes what no part of the model moves by with µP, and does without."""
    tree: dict[str, Any] = {
        "name": "t",
        "model": SMALL | {"tied_embeddings": tied},
        "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 16},
        "train": {"device": "cpu", "optimizer": {"learning_rate": 5e-3}},
    }
    slopes = {}
    for mup in (None, Mup(base_hidden_size=32)):
        recipe = parse(tree)
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"mup": mup})})
        shapes = [widened(ModelShape(**SMALL, tied_embeddings=tied), factor) for factor in (2, 4, 8, 16)]
        found = [moved(recipe, shape, 4) for shape in shapes]
        slopes[mup is not None] = {
            part: growth([shape.hidden_size for shape in shapes], [each[part] for each in found]) for part in found[0]
        }
    assert max(slopes[True].values()) < 0.15, slopes
    assert max(slopes[False].values()) > 0.4, slopes
