from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from danlu.errors import UserError
from danlu.model.families import check_family, from_hugging_face, tensor_shapes, to_hugging_face
from danlu.model.shape import ModelShape, RopeScaling

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "layers": 3,
    "hidden_size": 48,
    "ffn_size": 80,
    "heads": 6,
    "kv_heads": 2,
    "max_sequence_length": 256,
}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 64}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 32, "low_frequency_factor": 1.5}

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "tied_embeddings": True, "kv_heads": None},
    "llama wide heads": {"head_size": 16, "rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "llama linear": {"rope_scaling": {"kind": "linear", "factor": 2.0}, "norm_epsilon": 1e-6},
    "mistral": {"family": "mistral", "head_size": 10},
    "mistral uneven": {"family": "mistral", "hidden_size": 50, "head_size": 8},
    "mistral window": {"family": "mistral", "sliding_window": 16, "rope_scaling": YARN | {"attention_factor": 1.25}},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "tied_embeddings": True},
    "qwen2 wide heads": {"family": "qwen2", "qkv_bias": True, "head_size": 12},
    "qwen2 window": {"family": "qwen2", "qkv_bias": True, "sliding_window": 16, "full_attention_layers": 1, "rope_scaling": YARN},
    "qwen3": {"family": "qwen3", "qk_norm": True, "rope_theta": 1e6},
    "qwen3 biases": {"family": "qwen3", "qk_norm": True, "qkv_bias": True, "output_bias": True, "head_size": 16, "kv_heads": 1},
    "ernie": {"family": "ernie4_5", "tied_embeddings": True, "rope_theta": 500_000.0, "head_size": 16},
    "ernie biases": {"family": "ernie4_5", "qkv_bias": True, "output_bias": True, "mlp_bias": True, "rope_scaling": YARN},
    "qwen3 window": {"family": "qwen3", "qk_norm": True, "sliding_window": 16},
}


def shape(name: str) -> ModelShape:
    return ModelShape(**BASE | SHAPES[name])


def their_config(ours: ModelShape) -> Any:
    config = to_hugging_face(ours, bos_token_id=1, eos_token_id=2, dtype="bfloat16")
    return AutoConfig.for_model(**json.loads(json.dumps(config)))


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_those_of_transformers(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(their_config(shape(name)))
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if shape(name).tied_embeddings:
        assert expected.pop("lm_head.weight") == expected["model.embed_tokens.weight"]
    assert tensor_shapes(shape(name)) == expected


@pytest.mark.parametrize("name", SHAPES)
def test_config_json_says_to_transformers_what_the_shape_says(name: str) -> None:
    ours, config = shape(name), their_config(shape(name))
    assert config.architectures == [type(AutoModelForCausalLM.from_config(config)).__name__]
    assert (config.bos_token_id, config.eos_token_id, config.dtype) == (1, 2, torch.bfloat16)
    assert config.rms_norm_eps == ours.norm_epsilon
    assert config.max_position_embeddings == ours.max_sequence_length
    assert config.rope_parameters["rope_theta"] == ours.rope_theta
    assert config.rope_parameters["rope_type"] == (ours.rope_scaling.kind if ours.rope_scaling else "default")
    assert config.tie_word_embeddings == ours.tied_embeddings
    if ours.family.startswith("qwen"):
        full = ours.layers if ours.sliding_window is None else ours.full_attention_layers
        assert config.layer_types == ["full_attention"] * full + ["sliding_attention"] * (ours.layers - full)
    assert getattr(config, "sliding_window", None) == ours.sliding_window


@pytest.mark.parametrize("name", SHAPES)
def test_round_trip(name: str) -> None:
    config = to_hugging_face(shape(name), bos_token_id=None, eos_token_id=7)
    assert config["bos_token_id"] is None
    assert from_hugging_face(json.loads(json.dumps(config))) == shape(name)


@pytest.mark.parametrize("name", SHAPES)
def test_what_transformers_writes_is_read(name: str) -> None:
    written = json.loads(their_config(shape(name)).to_json_string())
    assert "rope_parameters" in written
    assert from_hugging_face(written) == shape(name)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    layers=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    head_size=st.integers(1, 9).map(lambda half: 2 * half),
    tied=st.booleans(),
    bias=st.booleans(),
    window=st.none() | st.integers(1, 100),
    full=st.integers(0, 6),
)
def test_round_trip_of_any_shape(**drawn: Any) -> None:
    family, heads, window = drawn["family"], drawn["kv_heads"] * drawn["groups"], drawn["window"]
    sliding = window is not None and family != "llama"
    bias = drawn["bias"] and family in ("llama", "qwen3")
    ours = ModelShape(
        family=family,
        vocab_size=11,
        layers=drawn["layers"],
        hidden_size=8 * heads,
        ffn_size=24,
        heads=heads,
        kv_heads=drawn["kv_heads"],
        head_size=drawn["head_size"],
        tied_embeddings=drawn["tied"],
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        qk_norm=family == "qwen3",
        sliding_window=window if sliding else None,
        full_attention_layers=drawn["full"] if sliding and family != "mistral" else 0,
    )
    back = from_hugging_face(to_hugging_face(ours, bos_token_id=0, eos_token_id=None))
    assert (back.key_value_heads, back.head_dim) == (ours.key_value_heads, ours.head_dim)
    no_window_left = sliding and ours.full_attention_layers >= ours.layers
    resolved: dict[str, Any] = {"kv_heads": back.kv_heads, "head_size": back.head_size}
    resolved |= {"sliding_window": None, "full_attention_layers": 0} if no_window_left else {}
    assert back == ours.model_copy(update=resolved)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": "ernie4_5", "qkv_bias": True}, "qkv_bias, output_bias and mlp_bias must be equal for family ernie4_5"),
        ({"qk_norm": True}, "qk_norm must be false for family llama; qwen3"),
        ({"family": "qwen3"}, "qk_norm must be true for family qwen3"),
        ({"family": "qwen2"}, "qkv_bias must be true and output_bias false for family qwen2"),
        ({"family": "qwen2", "qkv_bias": True, "output_bias": True}, "output_bias false for family qwen2"),
        ({"qkv_bias": True}, "qkv_bias and output_bias must be equal for family llama; qwen2"),
        ({"family": "qwen3", "qk_norm": True, "output_bias": True}, "must be equal for family qwen3"),
        ({"family": "mistral", "qkv_bias": True}, "qkv_bias and output_bias must be false for family mistral"),
        ({"family": "mistral", "mlp_bias": True}, "mlp_bias must be false for family mistral; llama"),
        ({"sliding_window": 8}, "sliding_window must be null for family llama; mistral"),
        (
            {"family": "mistral", "sliding_window": 8, "full_attention_layers": 1},
            "full_attention_layers must be 0 for family mistral",
        ),
        ({"heads": 5, "kv_heads": None, "head_size": 8}, "hidden_size must be a multiple of heads"),
        ({"rope_scaling": {"kind": "yarn", "factor": 2.0}}, "rope_scaling.original_max_sequence_length is missing"),
    ],
)
def test_what_a_family_cannot_express_is_refused(fields: dict[str, Any], message: str) -> None:
    # model_construct: the shape's own validators may refuse some of these even earlier.
    ours = ModelShape.model_construct(**ModelShape(**BASE).model_dump() | fields)
    if "rope_scaling" in fields:
        ours = ours.model_copy(update={"rope_scaling": RopeScaling.model_construct(**fields["rope_scaling"])})
    for refuse in (check_family, lambda it: to_hugging_face(it, bos_token_id=None, eos_token_id=None)):
        with pytest.raises(UserError, match=message) as error:
            refuse(ours)
        assert str(error.value).startswith("model.")


LLAMA = to_hugging_face(shape("llama"), bos_token_id=None, eos_token_id=None)
MISTRAL = to_hugging_face(shape("mistral window"), bos_token_id=None, eos_token_id=None)
QWEN2 = to_hugging_face(shape("qwen2 window"), bos_token_id=None, eos_token_id=None)
QWEN3 = to_hugging_face(shape("qwen3"), bos_token_id=None, eos_token_id=None)
SLIDING = {"use_sliding_window": True, "sliding_window": 16}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"model_type": "mixtral"}, "model_type 'mixtral' is not a family danlu has"),
        (LLAMA | {"model_type": ["llama"]}, r"model_type \['llama'\]"),
        ({}, "model_type None"),
        (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "architectures .*LlamaForCausalLM only"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config .*unquantized"),
        (LLAMA | {"num_local_experts": 8}, "num_local_experts is 8; .*mixture of experts"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (MISTRAL | {"attention_bias": True}, "attention_bias is true; family mistral"),
        (QWEN3 | {"mlp_bias": True}, "mlp_bias is true; family qwen3"),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"rope_scaling\.rope_type is 'dynamic'"),
        (LLAMA | {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
        (LLAMA | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, r"rope_parameters\.rope_type is 'dynamic'"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters differs by layer type"),
        (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.25}}, r"rope_parameters\.partial_rotary_factor is 0\.25"),
        (LLAMA | {"rope_scaling": "yarn"}, "rope_scaling must be an object, not 'yarn'"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn"}}, r"rope_scaling\.factor is missing"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": -1}},
            r"rope_scaling\.factor must be a number above 0, not -1",
        ),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, r"rope_scaling\.low_freq_factor is missing"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1, "mscale_all_dim": 1}}, "mscale"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": False}}, "truncate is false"),
        (LLAMA | {"rope_theta": float("inf")}, "rope_theta must be a number above 0, not inf"),
        (LLAMA | {"rope_theta": True}, "rope_theta must be a number above 0, not True"),
        (LLAMA | {"hidden_size": 4.5}, "hidden_size must be a whole number of at least 1, not 4.5"),
        (LLAMA | {"vocab_size": 0}, "vocab_size must be a whole number of at least 1, not 0"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        (LLAMA | {"intermediate_size": None}, "intermediate_size is missing"),
        (LLAMA | {"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number above 0, not '1e-5'"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        (LLAMA | {"num_key_value_heads": 4}, "4 does not divide heads"),
        ({key: value for key, value in MISTRAL.items() if key != "num_key_value_heads"}, "num_key_value_heads is missing"),
        (QWEN2 | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}, "layer_types must name every layer"),
        (QWEN2 | {"layer_types": ["full_attention"]}, "layer_types must name every layer"),
        (QWEN2 | {"layer_types": "full_attention"}, "layer_types must name every layer"),
        (QWEN2 | {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3}, "use_sliding_window false"),
        (
            MISTRAL | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
            "family mistral slides in every layer",
        ),
    ],
)
def test_what_danlu_cannot_represent_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        from_hugging_face(config)
    assert str(error.value).startswith("config.json: ")
    assert "\n" not in str(error.value)


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(UserError, match=r"config\.json: must hold one JSON object, not list"):
        from_hugging_face([])  # type: ignore[arg-type]


def without(config: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in fields}


@pytest.mark.parametrize(
    "config",
    [
        without(LLAMA, "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "tie_word_embeddings", "hidden_act"),
        without(MISTRAL, "sliding_window", "head_dim", "rope_scaling"),
        without(QWEN2, "use_sliding_window", "rope_scaling"),
        without(QWEN2, "sliding_window", "max_window_layers") | {"num_hidden_layers": 30},
        QWEN2 | {"layer_types": ["full_attention"] * 2 + ["sliding_attention"]},
        QWEN2 | {"max_window_layers": 70},
        without(QWEN3, "head_dim", "attention_bias"),
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        LLAMA | {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32},
        LLAMA | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 5e5, "beta_fast": 16, "beta_slow": None}},
        LLAMA | {"rope_scaling": {"rope_type": "default", "rope_theta": 7e4}},
    ],
)
def test_absent_fields_mean_what_they_mean_to_transformers(config: dict[str, Any]) -> None:
    """Read by danlu and written again, a config gives transformers the same model as the config itself."""
    direct = AutoConfig.for_model(**json.loads(json.dumps(config)))
    through = their_config(from_hugging_face(config))
    assert windows(through) == windows(direct)
    for field in ("num_key_value_heads", "tie_word_embeddings", "hidden_act"):
        assert getattr(through, field) == getattr(direct, field), field
    frequencies = [AutoModelForCausalLM.from_config(it).model.rotary_emb for it in (direct, through)]
    assert torch.equal(frequencies[0].inv_freq, frequencies[1].inv_freq)
    assert frequencies[0].attention_scaling == frequencies[1].attention_scaling
    with torch.device("meta"):
        models = [AutoModelForCausalLM.from_config(it) for it in (direct, through)]
    sizes = [{key: tensor.shape for key, tensor in model.state_dict().items()} for model in models]
    assert sizes[0] == sizes[1]


def windows(config: Any) -> list[int | None]:
    """The sliding window of every layer, as the attention layers of transformers apply it."""
    model = AutoModelForCausalLM.from_config(config).model
    if config.model_type == "mistral":
        return [config.sliding_window] * config.num_hidden_layers
    return [getattr(layer.self_attn, "sliding_window", None) for layer in model.layers]
