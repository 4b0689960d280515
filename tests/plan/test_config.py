"""Configurations as they are published, against the parameters that their models are known to have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import UserError
from danlu.plan.config import parse, read

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
NEOX = {
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "max_position_embeddings": 2048,
    "vocab_size": 50304,
    "tie_word_embeddings": False,
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
GEMMA = {
    "model_type": "gemma",
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 256000,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),  # Llama 3.1 8B
        (GPT2, 124_439_808),  # GPT-2 small
        (NEOX, 70_426_624),  # Pythia 70M
        (QWEN, 494_032_768),  # Qwen2.5 0.5B
        (GEMMA, 2_506_172_416),  # Gemma 2B
    ],
)
def test_published_models_have_their_parameters(config: dict[str, Any], parameters: int) -> None:
    found = parse(config, "config.json")
    assert found.dimensions.parameters == pytest.approx(parameters, rel=1e-3)
    assert found.notes == () or "4 x" in found.notes[0]


def test_an_unknown_architecture_is_planned_with_a_note() -> None:
    found = parse({**LLAMA, "model_type": "newcomer", "hidden_act": "silu"}, "config.json")
    assert found.dimensions == parse(LLAMA, "config.json").dimensions
    assert "newcomer is not known" in found.notes[0] and "three MLP matrices" in found.notes[0]
    plain = parse({**LLAMA, "model_type": "newcomer", "hidden_act": "gelu"}, "config.json")
    assert not plain.dimensions.gated_mlp and "two MLP matrices" in plain.notes[0]


def test_the_language_part_of_a_larger_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "seer", "text_config": LLAMA}))
    assert read(tmp_path).dimensions.layers == 32
    assert read(tmp_path / "config.json").longest == 131072


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None}, "no hidden_size (nor n_embd"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000; no model is known with more than 10,000"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'; it must be a positive whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 30}, "hidden_size 4096 is not a multiple of num_attention_heads 30"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide"),
        ({"num_local_experts": 8}, "num_local_experts is 8: mixtures of experts are not planned"),
    ],
)
def test_errors_name_the_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse({**LLAMA, **change}, "config.json")
    assert says in str(caught.value) and str(caught.value).startswith("config.json: ")


@pytest.mark.parametrize(("text", "says"), [("{", "not readable as JSON"), ("[1]", "holds no object"), (None, "no such file")])
def test_files_that_are_none(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=says):
        read(tmp_path)
