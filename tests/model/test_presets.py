from __future__ import annotations

import re
from itertools import pairwise

import pytest

from danlu.errors import UserError
from danlu.model.counts import parameter_count, parameter_parts
from danlu.model.families import check_family, from_hugging_face
from danlu.model.presets import PRESETS, preset

# Exact totals: what the published safetensors hold, a tied head once.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "ernie-4.5-0.3b": 360_748_032,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}

# "Number of parameters (non-embedding)", in billions, as the model cards print them.
NON_EMBEDDING = {
    "qwen2.5-0.5b": 0.36,
    "qwen2.5-1.5b": 1.31,
    "qwen2.5-3b": 2.77,
    "qwen2.5-7b": 6.53,
    "qwen2.5-14b": 13.1,
    "qwen2.5-32b": 31.0,
    "qwen2.5-72b": 70.0,
    "qwen3-0.6b": 0.44,
    "qwen3-1.7b": 1.4,
    "qwen3-4b": 3.6,
    "qwen3-8b": 6.95,
    "qwen3-14b": 13.2,
    "qwen3-32b": 31.2,
}

LLAMA3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def published(model_type: str, architecture: str, sizes: tuple[int, ...], **others: object) -> dict[str, object]:
    """A published config.json: `sizes` are hidden, intermediate, layers, heads, key/value heads, positions, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    named = dict(zip((*names, "max_position_embeddings", "vocab_size"), sizes, strict=True))
    common = {
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    return {"architectures": [architecture], "model_type": model_type} | common | named | others


CONFIGS = {
    "llama-3.1-8b": published(
        "llama",
        "LlamaForCausalLM",
        (4096, 14336, 32, 32, 8, 131072, 128256),
        rope_scaling=LLAMA3_SCALING | {"factor": 8.0},
        rope_theta=500000.0,
        rms_norm_eps=1e-05,
        attention_bias=False,
        mlp_bias=False,
        pretraining_tp=1,
        tie_word_embeddings=False,
    ),
    "llama-3.2-3b": published(
        "llama",
        "LlamaForCausalLM",
        (3072, 8192, 28, 24, 8, 131072, 128256),
        rope_scaling=LLAMA3_SCALING | {"factor": 32.0},
        rope_theta=500000.0,
        rms_norm_eps=1e-05,
        attention_bias=False,
        mlp_bias=False,
        head_dim=128,
        pretraining_tp=1,
        tie_word_embeddings=True,
    ),
    "smollm2-1.7b": published(
        "llama",
        "LlamaForCausalLM",
        (2048, 8192, 24, 32, 32, 8192, 49152),
        rope_scaling=None,
        rope_theta=130000,
        rms_norm_eps=1e-05,
        tie_word_embeddings=True,
    ),
    "mistral-7b-v0.1": published(
        "mistral",
        "MistralForCausalLM",
        (4096, 14336, 32, 32, 8, 32768, 32000),
        rope_theta=10000.0,
        rms_norm_eps=1e-05,
        sliding_window=4096,
        tie_word_embeddings=False,
    ),
    "mistral-7b-v0.3": published(
        "mistral",
        "MistralForCausalLM",
        (4096, 14336, 32, 32, 8, 32768, 32768),
        rope_theta=1000000.0,
        rms_norm_eps=1e-05,
        sliding_window=None,
        tie_word_embeddings=False,
    ),
    "qwen2-72b": published(
        "qwen2",
        "Qwen2ForCausalLM",
        (8192, 29568, 80, 64, 8, 131072, 152064),
        rope_theta=1000000.0,
        rms_norm_eps=1e-05,
        tie_word_embeddings=False,
        max_window_layers=28,
        sliding_window=131072,
        use_sliding_window=False,
    ),
    "qwen2.5-3b": published(
        "qwen2",
        "Qwen2ForCausalLM",
        (2048, 11008, 36, 16, 2, 32768, 151936),
        rope_theta=1000000.0,
        rms_norm_eps=1e-06,
        tie_word_embeddings=True,
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
        use_mrope=False,
    ),
    "qwen2.5-32b": published(
        "qwen2",
        "Qwen2ForCausalLM",
        (5120, 27648, 64, 40, 8, 131072, 152064),
        rope_theta=1000000.0,
        rms_norm_eps=1e-05,
        tie_word_embeddings=False,
        max_window_layers=64,
        sliding_window=131072,
        use_sliding_window=False,
    ),
    "qwen3-4b": published(
        "qwen3",
        "Qwen3ForCausalLM",
        (2560, 9728, 36, 32, 8, 40960, 151936),
        rope_theta=1000000,
        rms_norm_eps=1e-06,
        tie_word_embeddings=True,
        attention_bias=False,
        head_dim=128,
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
        rope_scaling=None,
    ),
    "qwen3-8b": published(
        "qwen3",
        "Qwen3ForCausalLM",
        (4096, 12288, 36, 32, 8, 40960, 151936),
        rope_theta=1000000,
        rms_norm_eps=1e-06,
        tie_word_embeddings=False,
        attention_bias=False,
        head_dim=128,
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
        rope_scaling=None,
    ),
}

OWN = sorted(set(PRESETS) - set(PUBLISHED))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_exact_parameters(name: str) -> None:
    assert parameter_count(preset(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", NON_EMBEDDING)
def test_non_embedding_parameters_are_the_model_cards(name: str) -> None:
    # Within 1 %: the cards round either way, once (13.2 for Qwen2.5-14B's 13.1) by more than half a digit.
    assert parameter_parts(preset(name)).non_embedding / 1e9 == pytest.approx(NON_EMBEDDING[name], rel=0.01)


@pytest.mark.parametrize("name", CONFIGS)
def test_presets_equal_the_published_config(name: str) -> None:
    assert from_hugging_face(CONFIGS[name]) == preset(name)


@pytest.mark.parametrize("name", OWN)
def test_own_shapes_are_named_after_their_size(name: str) -> None:
    match = re.fullmatch(r"llama-(\d+)m", name)
    assert match is not None
    assert parameter_count(preset(name)) == pytest.approx(int(match[1]) * 1e6, rel=0.06)


def test_own_shapes_span_from_5_million_to_a_billion_in_steps_that_scale() -> None:
    sizes = sorted(parameter_count(preset(name)) for name in OWN)
    assert sizes[0] < 6e6
    assert all(larger < 4 * smaller for smaller, larger in pairwise(sizes))
    assert parameter_count(preset("llama-3.1-405b")) == max(map(parameter_count, PRESETS.values()))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_consistent(name: str) -> None:
    shape = preset(name)
    check_family(shape)
    assert shape.heads % shape.key_value_heads == 0
    assert shape.head_dim in (64, 128)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("llama-3-8", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Llama-2-7b-hf", "llama-2-7b"),
        ("bert", "danlu model list"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(UserError, match=rf"model\.preset.*{re.escape(repr(wrong))}.*{re.escape(hint)}"):
        preset(wrong)
