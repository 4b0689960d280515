"""Against transformers: the same weights give the same logits and gradients in every family, in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.loss import linear_cross_entropy
from danlu.model.families import from_hugging_face, tensor_shapes, to_hugging_face
from danlu.model.shape import ModelShape

LINEAR = {"kind": "linear", "factor": 2.0}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 32, "low_frequency_factor": 1.5}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 32}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied, all biases, no groups": {
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": True,
        "kv_heads": None,
    },
    "llama wide heads, llama3 scaling": {"head_size": 16, "rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "llama linear scaling": {"rope_scaling": LINEAR, "norm_epsilon": 1e-3},
    "llama yarn": {"rope_scaling": YARN | {"attention_factor": 1.25}, "kv_heads": 1},
    "mistral": {"family": "mistral", "head_size": 10},
    "mistral window": {"family": "mistral", "hidden_size": 50, "head_size": 8, "sliding_window": 7, "tied_embeddings": True},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "tied_embeddings": True},
    "qwen2 window after one layer, yarn": {
        "family": "qwen2",
        "qkv_bias": True,
        "sliding_window": 7,
        "full_attention_layers": 1,
        "rope_scaling": YARN,
    },
    "qwen3 wide heads": {"family": "qwen3", "qk_norm": True, "head_size": 16, "rope_theta": 1e6},
    "ernie": {"family": "ernie4_5", "tied_embeddings": True, "head_size": 16, "rope_theta": 500_000.0},
    "ernie biases, no groups": {"family": "ernie4_5", "qkv_bias": True, "output_bias": True, "mlp_bias": True, "kv_heads": None},
    "qwen3 biases, tied, window after two layers": {
        "family": "qwen3",
        "qk_norm": True,
        "qkv_bias": True,
        "output_bias": True,
        "head_size": 16,
        "kv_heads": 1,
        "tied_embeddings": True,
        "sliding_window": 5,
        "full_attention_layers": 2,
    },
}
LENGTH = 48


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, 96, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


def exported(engine: TorchEngine, folder: Path, attention: str = "sdpa") -> Any:
    """What transformers makes of the engine's export."""
    engine.export_weights(folder, "fp32")
    (folder / "config.json").write_text(json.dumps(to_hugging_face(engine.shape, bos_token_id=None, eos_token_id=None)))
    model, info = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, output_loading_info=True)
    assert not any(info.values()), info
    # transformers unties in silence when the file holds two that differ.
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == engine.shape.tied_embeddings
    return model.eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_an_export_with_equal_logits_and_gradients(
    name: str, engine_of: Callable[..., TorchEngine], randomise: Callable[[CausalLM], None], tmp_path: Path
) -> None:
    ours = engine_of(**FAMILIES[name])
    randomise(ours.model)
    theirs = exported(ours, tmp_path, attention="eager" if FAMILIES[name].get("kv_heads") == 1 else "sdpa")
    inputs, targets = tokens(0), tokens(1)
    targets[0, :9] = -100

    expected = theirs(input_ids=inputs).logits
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    logits = ours.model(inputs)
    linear_cross_entropy(ours.model.model(inputs), ours.model.lm_head.weight, targets, 1 / int((targets >= 0).sum())).backward()

    assert expected.std() > 0.3  # logits near 0 would agree whatever the model
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    mine = {key: parameter.grad for key, parameter in ours.model.named_parameters()}
    assert mine.keys() == gradients.keys()
    for key, gradient in gradients.items():
        largest = gradient.abs().max()
        assert largest > 0, key
        assert (mine[key] - gradient).abs().max() <= 1e-5 * largest, key


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_saves_is_imported_with_equal_logits(
    name: str,
    shape_of: Callable[..., ModelShape],
    engine_of: Callable[..., TorchEngine],
    randomise: Callable[[Any], None],
    tmp_path: Path,
) -> None:
    config = to_hugging_face(shape_of(**FAMILIES[name]), bos_token_id=1, eos_token_id=2)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)

    shape = from_hugging_face(json.loads((tmp_path / "config.json").read_text()))
    ours = engine_of(shape=shape)
    ours.import_weights(tmp_path)

    with torch.no_grad():
        torch.testing.assert_close(ours.model(tokens()), theirs(input_ids=tokens()).logits, rtol=0, atol=1e-5)


def test_a_sliding_window_reaches_no_further_back(
    engine_of: Callable[..., TorchEngine], randomise: Callable[[CausalLM], None]
) -> None:
    """One layer with a window of 7: token 10 moves the logits of positions 10 to 16 and no others."""
    model = engine_of(family="mistral", layers=1, sliding_window=7).model
    randomise(model)
    before, after = tokens(), tokens()
    after[:, 10] = (after[:, 10] + 1) % 96
    moved = (model(before) != model(after)).any(-1).all(0)
    assert moved.nonzero().flatten().tolist() == list(range(10, 17))


LENGTHS = (13, 22, 13)
MASKED: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral window": {"family": "mistral", "sliding_window": 7},
    "qwen2 window after one layer": {"family": "qwen2", "qkv_bias": True, "sliding_window": 7, "full_attention_layers": 1},
}


def packed() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (2, 48), positions and document numbers of three documents a sample."""
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    documents = torch.cat([torch.full((length,), number, dtype=torch.int32) for number, length in enumerate(LENGTHS)])
    return tokens(), positions.expand(2, -1), documents.expand(2, -1)


@pytest.mark.parametrize("name", MASKED)
def test_a_document_does_not_move_the_next_ones_logits(
    name: str, engine_of: Callable[..., TorchEngine], randomise: Callable[[CausalLM], None]
) -> None:
    model = engine_of(**MASKED[name]).model
    randomise(model)
    before, positions, documents = packed()
    after = before.clone()
    after[:, : LENGTHS[0]] = (after[:, : LENGTHS[0]] + 1) % 96
    rest = slice(LENGTHS[0], None)

    masked, moved = model(before, positions, documents), model(after, positions, documents)
    assert torch.equal(masked[:, rest], moved[:, rest])
    assert not torch.equal(masked[:, : LENGTHS[0]], moved[:, : LENGTHS[0]])
    # Without the mask the second document's first tokens do see the first one.
    assert (model(before, positions)[:, rest] - model(after, positions)[:, rest]).abs().max() > 1e-2


@pytest.mark.parametrize("name", MASKED)
def test_packed_documents_give_the_logits_of_each_alone(
    name: str, engine_of: Callable[..., TorchEngine], randomise: Callable[[CausalLM], None]
) -> None:
    model = engine_of(**MASKED[name]).model
    randomise(model)
    inputs, positions, documents = packed()
    together = model(inputs, positions, documents)
    alone = torch.cat([model(document) for document in inputs.split(LENGTHS, dim=1)], dim=1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_the_mask_reaches_the_loss_of_a_batch(engine_of: Callable[..., TorchEngine]) -> None:
    """Through the engine: the loss of packed documents is the sum of their own, and not without document numbers."""
    engine = engine_of()
    inputs, positions, documents = packed()
    targets = tokens(1)
    batch = {"inputs": inputs, "targets": targets, "positions": positions, "documents": documents}
    alone = [
        engine.evaluate({"inputs": part, "targets": target})[0]
        for part, target in zip(inputs.split(LENGTHS, 1), targets.split(LENGTHS, 1), strict=True)
    ]
    assert engine.evaluate(batch)[0] == pytest.approx(sum(alone), rel=1e-6)
    assert engine.evaluate({"inputs": inputs, "targets": targets})[0] != pytest.approx(sum(alone), rel=1e-5)


def test_parameters_have_the_names_and_shapes_of_the_layout(engine_of: Callable[..., TorchEngine]) -> None:
    for name, fields in FAMILIES.items():
        engine = engine_of(**fields)
        assert {key: tuple(tensor.shape) for key, tensor in engine.own.items()} == tensor_shapes(engine.shape), name
