from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.model.presets import preset
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape, RopeScaling


def shape(scaling: dict[str, Any] | None = None, **others: Any) -> ModelShape:
    base: dict[str, Any] = {
        "vocab_size": 64,
        "layers": 1,
        "hidden_size": 256,
        "ffn_size": 64,
        "heads": 4,
        "max_sequence_length": 8192,
    }
    return ModelShape(**base | others | {"rope_scaling": scaling})


def theirs(ours: ModelShape) -> tuple[np.ndarray, float]:
    config = LlamaConfig(**to_hugging_face(ours, bos_token_id=None, eos_token_id=None))
    rotary = LlamaRotaryEmbedding(config)
    return rotary.inv_freq.double().numpy(), rotary.attention_scaling


SCALINGS = {
    "none": None,
    "linear": {"kind": "linear", "factor": 2.5},
    "llama3": {"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 8192},
    "llama3 bands": {
        "kind": "llama3",
        "factor": 32.0,
        "original_max_sequence_length": 1000,
        "low_frequency_factor": 2.0,
        "high_frequency_factor": 7.5,
    },
    "yarn": {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 2048},
    "yarn betas": {"kind": "yarn", "factor": 16.0, "original_max_sequence_length": 4096, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn attention": {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 2048, "attention_factor": 0.7},
    "yarn all slow": {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 3},
    "yarn short": {"kind": "yarn", "factor": 0.5, "original_max_sequence_length": 2048},
}


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 100.0])
@pytest.mark.parametrize("heads", [2, 4, 16, 64])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name: str, heads: int, theta: float) -> None:
    ours = shape(SCALINGS[name], heads=heads, rope_theta=theta)
    inverse, factor = frequencies(ours)
    expected, expected_factor = theirs(ours)
    assert inverse.dtype == np.float64
    np.testing.assert_allclose(inverse, expected, rtol=1e-6)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "tinyllama-1.1b"])
def test_frequencies_of_published_models_equal_transformers(name: str) -> None:
    np.testing.assert_allclose(frequencies(preset(name))[0], theirs(preset(name))[0], rtol=1e-6)


def test_llama3_bands_by_hand() -> None:
    """Heads of 64, theta 10000: pair 0 turns every 2 pi tokens and is kept, pair 31 every 47,000 and is divided by the factor."""
    plain, _ = frequencies(shape())
    scaled, factor = frequencies(shape({"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 8192}))
    assert factor == 1.0
    assert scaled[0] == plain[0] == 1.0
    assert 2 * math.pi / plain[-1] > 8192
    assert scaled[-1] == plain[-1] / 8
    assert np.all(np.diff(plain / scaled) >= -1e-12)


def test_the_size_of_a_head_counts_and_not_the_hidden_size() -> None:
    inverse, _ = frequencies(shape(head_size=32))
    np.testing.assert_allclose(inverse, 10_000.0 ** (-np.arange(16) / 16), rtol=1e-15)


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_a_missing_original_length_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=rf"model\.rope_scaling\.original_max_sequence_length is missing; kind {kind}"):
        frequencies(shape().model_copy(update={"rope_scaling": RopeScaling.model_construct(kind=kind, factor=2.0)}))


def test_contradictory_bands_are_refused() -> None:
    llama3 = {"kind": "llama3", "factor": 2.0, "original_max_sequence_length": 64}
    with pytest.raises(UserError, match=r"high_frequency_factor \(1\) must be above low_frequency_factor \(1\)"):
        frequencies(shape(llama3 | {"high_frequency_factor": 1.0}))
    yarn = {"kind": "yarn", "factor": 2.0, "original_max_sequence_length": 64}
    with pytest.raises(UserError, match=r"beta_fast \(1\) must not be below beta_slow \(2\)"):
        frequencies(shape(yarn | {"beta_fast": 1.0, "beta_slow": 2.0}))
