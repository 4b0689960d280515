"""The Hugging Face layout of the families: config.json in both directions, and the names and shapes of the tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NoReturn

from pydantic import ValidationError

from danlu.errors import UserError
from danlu.model.shape import Family, ModelShape, RopeScaling

TensorType = Literal["float32", "bfloat16", "float16"]


class _Traits(NamedTuple):
    """What a family's classes in transformers can express."""

    architecture: str
    attention_bias: bool = False
    """config.json has `attention_bias`: one switch for the biases of query, key, value and output."""
    mlp_bias: bool = False
    """config.json has `mlp_bias`."""
    use_bias: bool = False
    """config.json has `use_bias`: one switch for the biases of all seven projections."""
    qkv_bias: bool = False
    """Query, key and value always have biases, the output projection never."""
    qk_norm: bool = False
    """Queries and keys are always normalised; elsewhere never."""
    window: Literal["none", "all layers", "later layers"] = "none"
    """Which layers a sliding window can apply to."""
    head_dim: int | None = None
    """What an absent `head_dim` means; None: hidden_size / num_attention_heads."""
    tied: bool = False
    """What an absent `tie_word_embeddings` means."""
    rope_theta: float = 10000.0
    """What an absent base of the rotary frequencies means."""


_FAMILIES: dict[Family, _Traits] = {
    "llama": _Traits("LlamaForCausalLM", attention_bias=True, mlp_bias=True),
    "mistral": _Traits("MistralForCausalLM", window="all layers"),
    "qwen2": _Traits("Qwen2ForCausalLM", qkv_bias=True, window="later layers"),
    "qwen3": _Traits("Qwen3ForCausalLM", attention_bias=True, qk_norm=True, window="later layers", head_dim=128),
    "ernie4_5": _Traits("Ernie4_5ForCausalLM", use_bias=True, head_dim=128, tied=True, rope_theta=500_000.0),
}


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Hugging Face tensor name -> shape, layer after layer; matrices are (output, input), lm_head.weight is absent when tied."""
    hidden, ffn = shape.hidden_size, shape.ffn_size
    queries, keys = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    linears = [
        ("self_attn.q_proj", queries, hidden, shape.qkv_bias),
        ("self_attn.k_proj", keys, hidden, shape.qkv_bias),
        ("self_attn.v_proj", keys, hidden, shape.qkv_bias),
        ("self_attn.o_proj", hidden, queries, shape.output_bias),
        ("mlp.gate_proj", ffn, hidden, shape.mlp_bias),
        ("mlp.up_proj", ffn, hidden, shape.mlp_bias),
        ("mlp.down_proj", hidden, ffn, shape.mlp_bias),
    ]
    norms = [("input_layernorm", hidden), ("post_attention_layernorm", hidden)]
    if shape.qk_norm:
        norms += [("self_attn.q_norm", shape.head_dim), ("self_attn.k_norm", shape.head_dim)]
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        for name, outputs, inputs, bias in linears:
            tensors[f"{block}.{name}.weight"] = (outputs, inputs)
            if bias:
                tensors[f"{block}.{name}.bias"] = (outputs,)
        for name, size in norms:
            tensors[f"{block}.{name}.weight"] = (size,)
    tensors["model.norm.weight"] = (hidden,)
    if not shape.tied_embeddings:
        tensors["lm_head.weight"] = (shape.vocab_size, hidden)
    return tensors


def check_family(shape: ModelShape) -> None:
    """UserError naming the field if the shape's family cannot express it: no other program could open its checkpoints."""
    traits, family = _FAMILIES[shape.family], shape.family
    window = shape.sliding_window is not None
    if traits.qk_norm and not shape.qk_norm:
        _refuse_shape(f"qk_norm must be true for family {family}; qwen2 is the family without it")
    if shape.qk_norm and not traits.qk_norm:
        _refuse_shape(f"qk_norm must be false for family {family}; qwen3 is the family with it")
    if traits.qkv_bias and (not shape.qkv_bias or shape.output_bias):
        _refuse_shape(f"qkv_bias must be true and output_bias false for family {family}; llama can have both or none")
    if traits.attention_bias and shape.qkv_bias != shape.output_bias:
        _refuse_shape(f"qkv_bias and output_bias must be equal for family {family}; qwen2 is the family with qkv_bias alone")
    if traits.use_bias and len({shape.qkv_bias, shape.output_bias, shape.mlp_bias}) > 1:
        _refuse_shape(f"qkv_bias, output_bias and mlp_bias must be equal for family {family}; llama can have them apart")
    if (shape.qkv_bias or shape.output_bias) and not (traits.qkv_bias or traits.attention_bias or traits.use_bias):
        _refuse_shape(
            f"qkv_bias and output_bias must be false for family {family}; llama can have both, qwen2 has qkv_bias alone"
        )
    if shape.mlp_bias and not (traits.mlp_bias or traits.use_bias):
        _refuse_shape(f"mlp_bias must be false for family {family}; llama is the family that can have it")
    if window and traits.window == "none":
        _refuse_shape(f"sliding_window must be null for family {family}; mistral, qwen2 and qwen3 can have one")
    if window and shape.full_attention_layers and traits.window == "all layers":
        _refuse_shape(f"full_attention_layers must be 0 for family {family}; qwen2 and qwen3 can have them")
    if family == "llama" and shape.hidden_size % shape.heads:
        _refuse_shape(
            "hidden_size must be a multiple of heads for family llama, even with head_size given; mistral does not insist"
        )
    if shape.rope_scaling is not None:
        from danlu.model.rope import check_scaling  # reaches numpy, and the planner starts without it

        check_scaling(shape.rope_scaling)


def _refuse_shape(problem: str) -> NoReturn:
    raise UserError(f"model.{problem}")


def to_hugging_face(
    shape: ModelShape, *, bos_token_id: int | None, eos_token_id: int | None, dtype: TensorType = "float32"
) -> dict[str, Any]:
    """The config.json of a shape; UserError if its family cannot express it.

    `torch_dtype`, `rope_theta` and `rope_scaling` are the spellings that every transformers since 4.43 and most other programs
    read; transformers 5 writes `dtype` and `rope_parameters` but goes on reading these.
    """
    check_family(shape)
    traits = _FAMILIES[shape.family]
    config: dict[str, Any] = {
        "architectures": [traits.architecture],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_sequence_length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if shape.rope_scaling is None else _rope_to_hugging_face(shape.rope_scaling),
        "tie_word_embeddings": shape.tied_embeddings,
        "attention_dropout": 0.0,
        "use_cache": True,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "torch_dtype": dtype,
    }
    # Published Qwen2 configurations have no such field and some readers ignore it, so it is written only where it matters.
    if shape.family != "qwen2" or shape.head_dim * shape.heads != shape.hidden_size:
        config["head_dim"] = shape.head_dim
    if traits.attention_bias:
        config["attention_bias"] = shape.qkv_bias
    if traits.mlp_bias:
        config["mlp_bias"] = shape.mlp_bias
    if traits.use_bias:
        config["use_bias"] = shape.mlp_bias
        config["pad_token_id"] = None  # else ERNIE's classes take token 0 for padding and never train its embedding
    if traits.window != "none":
        config["sliding_window"] = shape.sliding_window
    if traits.window == "later layers":
        windowed = shape.sliding_window is not None
        config["use_sliding_window"] = windowed
        config["max_window_layers"] = shape.full_attention_layers if windowed else shape.layers
    return config


def _rope_to_hugging_face(scaling: RopeScaling) -> dict[str, Any]:
    fields: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        fields["original_max_position_embeddings"] = scaling.original_max_sequence_length
    if scaling.kind == "llama3":
        fields |= {"low_freq_factor": scaling.low_frequency_factor, "high_freq_factor": scaling.high_frequency_factor}
    if scaling.kind == "yarn":
        fields |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if scaling.attention_factor is not None:
            fields["attention_factor"] = scaling.attention_factor
    return fields


def from_hugging_face(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a config.json describes, as transformers would build it; UserError naming the field danlu cannot represent.

    Reads both spellings of the rotary settings: `rope_theta` with `rope_scaling`, and transformers 5's `rope_parameters`.
    `kv_heads` and `head_size` become null where they equal the default. Settings of training (dropout, initializer_range) are
    ignored: they are no part of a shape.
    """
    if not isinstance(config, Mapping):
        _refuse(f"must hold one JSON object, not {type(config).__name__}")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        _refuse(f"model_type {family!r} is not a family danlu has ({', '.join(_FAMILIES)})")
    traits = _FAMILIES[family]
    _refuse_unrepresentable(config, family, traits)
    hidden, heads, layers = (_whole(config, field) for field in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    # Llama 1 and 2 were published without num_key_value_heads; elsewhere its absence would silently mean a constant.
    kv_heads = _whole(config, "num_key_value_heads", heads if family == "llama" else None)
    head_dim = _whole(config, "head_dim", traits.head_dim or hidden // heads)
    max_length = _whole(config, "max_position_embeddings")
    window, full_layers = _window(config, family, traits, layers)
    use_bias = traits.use_bias and _flag(config, "use_bias")
    attention_bias = (traits.attention_bias and _flag(config, "attention_bias")) or use_bias
    try:
        theta, scaling = _rope(config, max_length, traits.rope_theta)
        return ModelShape(
            family=family,
            vocab_size=_whole(config, "vocab_size"),
            layers=layers,
            hidden_size=hidden,
            ffn_size=_whole(config, "intermediate_size"),
            heads=heads,
            kv_heads=None if kv_heads == heads else kv_heads,
            head_size=None if head_dim * heads == hidden else head_dim,
            max_sequence_length=max_length,
            tied_embeddings=_flag(config, "tie_word_embeddings", traits.tied),
            qkv_bias=attention_bias or traits.qkv_bias,
            output_bias=attention_bias,
            mlp_bias=(traits.mlp_bias and _flag(config, "mlp_bias")) or use_bias,
            qk_norm=traits.qk_norm,
            rope_theta=theta,
            rope_scaling=scaling,
            norm_epsilon=_number(config, "rms_norm_eps"),
            sliding_window=window,
            full_attention_layers=full_layers,
        )
    except ValidationError as error:
        first = error.errors()[0]
        _refuse(": ".join([*map(str, first["loc"]), first["msg"]]))


def _refuse(problem: str) -> NoReturn:
    raise UserError(f"config.json: {problem}")


def _refuse_unrepresentable(config: Mapping[str, Any], family: Family, traits: _Traits) -> None:
    architectures = config.get("architectures")
    if architectures and traits.architecture not in architectures:
        _refuse(f"architectures is {architectures}; of family {family} danlu has {traits.architecture} only")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        _refuse(f"hidden_act is {config['hidden_act']!r}; danlu computes 'silu' only")
    for field in ("quantization_config", "quantization"):
        if config.get(field):
            _refuse(f"{field} is set: the weights are quantized; use the unquantized checkpoint")
    for field in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(field):
            _refuse(f"{field} is {config[field]}; danlu has no mixture of experts")
    if config.get("partial_rotary_factor") not in (None, 1):
        _refuse(f"partial_rotary_factor is {config['partial_rotary_factor']}; danlu rotates whole heads only")
    # Qwen2 configurations may carry attention_bias with either value; its classes do not read it.
    if config.get("attention_bias") and not (traits.attention_bias or traits.qkv_bias):
        _refuse(f"attention_bias is true; family {family} has no attention biases")
    if config.get("use_bias") and not traits.use_bias:
        _refuse(f"use_bias is true; family {family} has no such switch")
    if config.get("mlp_bias") and not traits.mlp_bias:
        _refuse(f"mlp_bias is true; family {family} has no MLP biases")


def _rope(config: Mapping[str, Any], max_length: int, base: float) -> tuple[float, RopeScaling | None]:
    """Base and scaling, looked up in the order of transformers: rope_scaling before rope_parameters before the top level."""
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(field) or {}
    if not isinstance(given, Mapping):
        _refuse(f"{field} must be an object, not {given!r}")
    if any(isinstance(value, Mapping) for value in given.values()):
        _refuse(f"{field} differs by layer type ({', '.join(given)}); danlu has one rotation for all layers")
    if given.get("partial_rotary_factor") not in (None, 1):
        _refuse(f"{field}.partial_rotary_factor is {given['partial_rotary_factor']}; danlu rotates whole heads only")
    theta = _number(given, "rope_theta", _number(config, "rope_theta", base), inside=field)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3", "yarn"):
        _refuse(f"{field}.rope_type is {kind!r}; danlu has default, linear, llama3 and yarn")
    if given.get("mscale") and given.get("mscale_all_dim"):
        _refuse(f"{field}.mscale and mscale_all_dim are not supported; give {field}.attention_factor instead")
    if given.get("truncate") is False:
        _refuse(f"{field}.truncate is false; danlu rounds yarn's bounds to whole dimensions only")
    fields: dict[str, Any] = {"kind": kind, "factor": _number(given, "factor", inside=field)}
    if kind != "linear":
        # A length at the top level is Phi-3's way; transformers lets it win, and falls back to the model's own length.
        name = "original_max_position_embeddings"
        fields["original_max_sequence_length"] = _whole({name: config.get(name) or given.get(name)}, name, max_length)
    if kind == "llama3":
        fields["low_frequency_factor"] = _number(given, "low_freq_factor", inside=field)
        fields["high_frequency_factor"] = _number(given, "high_freq_factor", inside=field)
    if kind == "yarn":
        fields["beta_fast"] = _number(given, "beta_fast", 32.0, inside=field)
        fields["beta_slow"] = _number(given, "beta_slow", 1.0, inside=field)
        if given.get("attention_factor") is not None:
            fields["attention_factor"] = _number(given, "attention_factor", inside=field)
    return theta, RopeScaling(**fields)


def _window(config: Mapping[str, Any], family: Family, traits: _Traits, layers: int) -> tuple[int | None, int]:
    """Sliding window, and how many first layers ignore it; null and 0 if no layer has one."""
    if traits.window == "none":
        return None, 0
    window, full_layers = None, 0
    if traits.window == "all layers" or _flag(config, "use_sliding_window"):
        window = None if config.get("sliding_window", 4096) is None else _whole(config, "sliding_window", 4096)
    types = config.get("layer_types")
    if types is None:
        if window is not None and traits.window == "later layers":
            full_layers = _whole(config, "max_window_layers", 28, least=0)
    else:
        full_layers = types.count("full_attention") if isinstance(types, list) else -1
        sliding = layers - full_layers
        if types != ["full_attention"] * full_layers + ["sliding_attention"] * sliding:
            _refuse(
                "layer_types must name every layer, full_attention first and sliding_attention after; danlu has no other pattern"
            )
        if sliding and window is None:
            _refuse("layer_types has sliding_attention but sliding_window is null or use_sliding_window false")
        if full_layers and window is not None and traits.window == "all layers":
            _refuse(f"layer_types has full_attention beside a sliding_window; family {family} slides in every layer")
    return (None, 0) if window is None or full_layers >= layers else (window, full_layers)


def _whole(config: Mapping[str, Any], field: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number of at least `least`; an absent or null field is the default, or an error without one."""
    value = config.get(field)
    value = default if value is None else value
    if value is None:
        _refuse(f"{field} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        _refuse(f"{field} must be a whole number of at least {least}, not {value!r}")
    return value


def _number(config: Mapping[str, Any], field: str, default: float | None = None, *, inside: str = "") -> float:
    """A finite number above 0; an absent or null field is the default, or an error without one. `inside`: the parent's name."""
    path = f"{inside}.{field}" if inside else field
    value = config.get(field)
    value = default if value is None else value
    if value is None:
        _refuse(f"{path} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        _refuse(f"{path} must be a number above 0, not {value!r}")
    return float(value)


def _flag(config: Mapping[str, Any], field: str, default: bool = False) -> bool:
    """True or false; an absent or null field has the default."""
    value = config.get(field)
    if value is not None and not isinstance(value, bool):
        _refuse(f"{field} must be true or false, not {value!r}")
    return default if value is None else value
