"""The shape that a recipe's model section stands for: presets, checkpoints, spelled out; overrides and the vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from danlu.errors import UserError
from danlu.model.presets import preset
from danlu.model.shape import ModelShape, nearest_divisors
from danlu.recipe import parse, resolve_shape

Tree = dict[str, Any]
Checkpoint = Callable[..., str]

# What transformers' Qwen2Config writes for a small model.
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 3,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    def write(**changes: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(QWEN2 | changes), encoding="utf-8")
        return str(tmp_path)

    return write


def shape_of(tree: Tree, model: dict[str, Any], vocab_size: int | None, **data: Any) -> ModelShape:
    data = {"sources": [{"path": "a"}], "sequence_length": 128, **data}
    return resolve_shape(parse({**tree, "model": model, "data": data}), vocab_size)


def refused(tree: Tree, model: dict[str, Any], vocab_size: int | None, **data: Any) -> str:
    with pytest.raises(UserError) as caught:
        shape_of(tree, model, vocab_size, **data)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_preset_is_its_shape_with_the_tokenizers_vocabulary(tree: Tree) -> None:
    shape = shape_of(tree, {"preset": "qwen3-0.6b"}, 9000)
    assert shape == preset("qwen3-0.6b").model_copy(update={"vocab_size": 9000})
    assert (shape.layers, shape.head_dim, shape.qk_norm) == (28, 128, True)


def test_fields_beside_a_preset_override_it(tree: Tree) -> None:
    shape = shape_of(tree, {"preset": "qwen3-0.6b", "layers": 2, "kv_heads": 4, "rope_theta": 500.0}, 9000)
    assert (shape.layers, shape.kv_heads, shape.rope_theta) == (2, 4, 500.0)
    assert (shape.hidden_size, shape.family) == (1024, "qwen3")
    # a value that happens to be the default of the class is an override all the same
    assert shape_of(tree, {"preset": "qwen3-0.6b", "rope_theta": 10000.0}, 9000).rope_theta == 10000.0


def test_a_null_beside_a_preset_overrides_only_where_null_means_something(tree: Tree) -> None:
    shape = shape_of(
        tree, {"preset": "llama-3.2-1b", "kv_heads": None, "rope_scaling": None, "layers": None, "vocab_size": None}, 9000
    )
    assert (shape.key_value_heads, shape.rope_scaling, shape.layers, shape.vocab_size) == (32, None, 16, 9000)


def test_a_shape_spelled_out(tree: Tree) -> None:
    model = {"family": "qwen2", "qkv_bias": True, "layers": 2, "hidden_size": 64, "ffn_size": 96, "heads": 4, "kv_heads": 2}
    expected = ModelShape(
        family="qwen2", qkv_bias=True, layers=2, hidden_size=64, ffn_size=96, heads=4, kv_heads=2, vocab_size=777
    )
    assert shape_of(tree, model, 777) == expected


@pytest.mark.parametrize(
    ("own", "tokenizer", "data", "expected"),
    [
        (None, 700, {}, 700),
        (1024, 700, {}, 1024),
        (700, 700, {"tokenizer": {"path": "t.json"}}, 700),
        (None, None, {}, 8192),
        (None, None, {"tokenizer": {"train": {"vocab_size": 500}}}, 500),
        (600, None, {"tokenizer": {"train": {"vocab_size": 500}}}, 600),
        (None, None, {"tokenizer": {"path": "t.json"}}, 32000),
    ],
)
def test_the_vocabulary_is_the_recipes_then_the_tokenizers_then_the_presets(
    tree: Tree, own: int | None, tokenizer: int | None, data: dict[str, Any], expected: int
) -> None:
    data = {"tokenizer": {"train": {"vocab_size": 700}}} | data if own == 1024 else data
    assert shape_of(tree, {"preset": "llama-42m", "vocab_size": own}, tokenizer, **data).vocab_size == expected


def test_a_tokenizer_that_is_larger_than_the_embedding(tree: Tree) -> None:
    message = refused(tree, {"preset": "llama-5m", "vocab_size": 600}, 601, tokenizer={"path": "t.json"})
    assert message.startswith("recipe: model.vocab_size: 600 is smaller than the tokenizer's vocabulary (601); give at least 601")


def test_a_vocabulary_that_is_not_known_yet(tree: Tree) -> None:
    model = {"layers": 2, "hidden_size": 64, "ffn_size": 96, "heads": 4}
    message = refused(tree, model, None, tokenizer={"path": "t.json"})
    assert "model.vocab_size: is not known before the data is prepared" in message
    assert shape_of(tree, model, None).vocab_size == 8192


def test_a_checkpoint_gives_the_shape(tree: Tree, checkpoint: Checkpoint) -> None:
    shape = shape_of(tree, {"hugging_face": checkpoint()}, 990, tokenizer={"path": "t.json"})
    assert (shape.family, shape.layers, shape.hidden_size, shape.ffn_size, shape.heads, shape.kv_heads) == (
        "qwen2",
        3,
        64,
        160,
        4,
        2,
    )
    assert (shape.vocab_size, shape.max_sequence_length, shape.rope_theta, shape.tied_embeddings) == (1000, 256, 1e6, True)
    assert shape_of(tree, {"hugging_face": checkpoint()}, None, tokenizer={"path": "t.json"}) == shape


def test_a_tokenizer_that_is_larger_than_the_checkpoints_embedding(tree: Tree, checkpoint: Checkpoint) -> None:
    message = refused(tree, {"hugging_face": checkpoint()}, 1001, tokenizer={"path": "t.json"})
    assert "model.hugging_face: its embedding has 1000 rows, but the tokenizer's vocabulary is 1001" in message
    message = refused(tree, {"hugging_face": checkpoint()}, None, tokenizer={"train": {"vocab_size": 2000}})
    assert "its embedding has 1000 rows, but data.tokenizer.train.vocab_size is 2000" in message


def test_fields_beside_a_checkpoint_that_its_weights_contradict(tree: Tree, checkpoint: Checkpoint) -> None:
    def refuse(**fields: Any) -> str:
        return refused(tree, {"hugging_face": checkpoint(), **fields}, 900, tokenizer={"path": "t.json"})

    assert "model.layers: 2 contradicts the weights in model.hugging_face, which have 3; leave it out" in refuse(layers=2)
    assert "model.vocab_size: 999 contradicts" in refuse(vocab_size=999)
    assert "model.tied_embeddings: false contradicts the weights in model.hugging_face, which have true" in refuse(
        tied_embeddings=False
    )
    assert "model.head_size: 32 contradicts" in refuse(head_size=32)
    message = refuse(heads=2, qk_norm=True)
    assert "model.qk_norm: true contradicts" in message
    assert message.endswith("(and 1 more to mend: model.heads)")


def test_fields_beside_a_checkpoint_that_its_weights_allow(tree: Tree, checkpoint: Checkpoint) -> None:
    fields = {"layers": 3, "kv_heads": 2, "head_size": 16, "max_sequence_length": 512, "rope_theta": 5e5, "vocab_size": 1000}
    shape = shape_of(tree, {"hugging_face": checkpoint(), **fields}, 900, tokenizer={"path": "t.json"}, sequence_length=512)
    assert (shape.max_sequence_length, shape.rope_theta, shape.layers, shape.vocab_size) == (512, 5e5, 3, 1000)


def test_what_only_the_checkpoint_tells_is_checked_against_it(tree: Tree, checkpoint: Checkpoint) -> None:
    message = refused(tree, {"hugging_face": checkpoint()}, 900, tokenizer={"path": "t.json"}, sequence_length=512)
    assert "data.sequence_length: 512 is above model.max_sequence_length (256)" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "config.json"),
        (b'{"model_type": "gpt2"}', "gpt2"),
        (b'{"model_type": "llama"}', "config.json"),
    ],
)
def test_a_broken_config_json(tree: Tree, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    message = refused(tree, {"hugging_face": str(tmp_path)}, 900, tokenizer={"path": "t.json"})
    assert message.startswith("recipe: model.hugging_face: ")
    assert expected in message


def test_a_config_json_whose_dimensions_contradict(tree: Tree, checkpoint: Checkpoint) -> None:
    message = refused(tree, {"hugging_face": checkpoint(num_key_value_heads=3)}, 900, tokenizer={"path": "t.json"})
    assert message.startswith("recipe: model.hugging_face: ")
    assert "3 does not divide heads (4)" in message


def test_a_checkpoint_that_is_not_there(tree: Tree, tmp_path: Path) -> None:
    def refuse(folder: str) -> str:
        return refused(tree, {"hugging_face": folder}, 900, tokenizer={"path": "t.json"})

    assert "holds no config.json" in refuse(str(tmp_path))
    message = refuse("Qwen/Qwen3-0.6B")
    assert "there is no folder Qwen/Qwen3-0.6B; danlu downloads nothing" in message
    assert "for its shape with new weights write preset: qwen3-0.6b" in message
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert "there is no folder" in refuse(str(tmp_path / "file"))


def test_loading_a_recipe_reads_no_checkpoint(tree: Tree) -> None:
    data = {"sources": [{"path": "a"}], "tokenizer": {"path": "nowhere"}}
    assert parse({**tree, "model": {"hugging_face": "nowhere"}, "data": data}).model.hugging_face == "nowhere"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kv_heads": 5}, "kv_heads: 5 does not divide heads (12); give 4 or 6"),
        ({"kv_heads": 24}, "kv_heads: 24 does not divide heads (12); give 12"),
        ({"hidden_size": 100}, "hidden_size: 100 is not a multiple of heads (12); give hidden_size 96 or 108, or head_size"),
        ({"hidden_size": 5}, "hidden_size: 5 is not a multiple of heads (12); give hidden_size 12"),
        (
            {"hidden_size": 36},
            "head_size: 3 (hidden_size 36 / heads 12) is odd, but rotary positions turn pairs; give head_size 2 or 4",
        ),
        ({"head_size": 1}, "head_size: 1 is odd, but rotary positions turn pairs; give head_size 2"),
        ({"rope_theta": float("nan")}, "finite"),
        ({"norm_epsilon": float("inf")}, "finite"),
    ],
)
def test_a_shape_refuses_heads_that_do_not_fit(change: dict[str, Any], problem: str) -> None:
    good = {"layers": 1, "hidden_size": 96, "ffn_size": 64, "heads": 12, "vocab_size": 300}
    assert ModelShape(**good).head_dim == 8
    with pytest.raises(ValidationError) as caught:
        ModelShape(**good | change)
    assert problem in caught.value.errors()[0]["msg"]


def test_the_nearest_divisors() -> None:
    for value in range(1, 60):
        divisors = [number for number in range(1, value + 1) if value % number == 0]
        for wanted in range(1, 70):
            below = max(number for number in divisors if number <= wanted)
            above = min((number for number in divisors if number >= wanted), default=value)
            assert nearest_divisors(value, wanted) == sorted({below, above})
    assert nearest_divisors(10**18 + 3, 5 * 10**17) == [1, 10**18 + 3]
