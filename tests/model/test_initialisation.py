from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from danlu.model.families import tensor_shapes, to_hugging_face
from danlu.model.initialisation import Initial, initial
from danlu.model.presets import preset
from danlu.model.shape import ModelShape


def shape(**fields: Any) -> ModelShape:
    base: dict[str, Any] = {"vocab_size": 512, "layers": 4, "hidden_size": 64, "ffn_size": 172, "heads": 2}
    return ModelShape(**base | fields)


def initialised(ours: ModelShape) -> torch.nn.Module:
    """A transformers model with every tensor drawn as danlu says."""
    config = AutoConfig.for_model(**to_hugging_face(ours, bos_token_id=None, eos_token_id=None))
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(*initial(ours, name), generator=generator)
    return model


def test_at_hidden_size_1000_it_is_gpt2s_constant() -> None:
    assert initial(shape(hidden_size=1000), "model.layers.0.mlp.up_proj.weight") == Initial(0.0, pytest.approx(0.02))


def test_gpt_neox_20bs_figure() -> None:
    """small_init of GPT-NeoX-20B: hidden size 6144, sqrt(2 / (5 * 6144)) = 0.00807."""
    neox = shape(hidden_size=6144, heads=64)
    assert initial(neox, "model.embed_tokens.weight").standard_deviation == pytest.approx(0.00807, rel=1e-3)


@pytest.mark.parametrize("layers", [1, 8, 80])
def test_residual_projections_shrink_with_depth(layers: int) -> None:
    ours = shape(layers=layers)
    matrix = initial(ours, "model.layers.0.self_attn.q_proj.weight").standard_deviation
    for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        assert initial(ours, name).standard_deviation == pytest.approx(matrix / math.sqrt(2 * layers))


@pytest.mark.parametrize("name", ["llama-42m", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_every_tensor_of_a_model_has_a_beginning(name: str) -> None:
    for tensor, size in tensor_shapes(preset(name)).items():
        start = initial(preset(name), tensor)
        assert (start.standard_deviation > 0) == (len(size) == 2)
        assert start.mean == (1.0 if tensor.endswith("norm.weight") else 0.0)


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.router\.weight"):
        initial(shape(), "model.layers.0.mlp.router.weight")


@pytest.mark.parametrize("hidden", [64, 256, 1024])
def test_the_first_loss_is_that_of_a_uniform_guess_at_every_width(hidden: int) -> None:
    """Logits spread by sqrt(2 / 5) whatever the width, which costs half of their variance: ln(vocabulary) + 0.2."""
    ours = shape(hidden_size=hidden, ffn_size=2 * hidden, layers=2, tied_embeddings=False)
    tokens = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        loss = float(initialised(ours)(input_ids=tokens, labels=tokens).loss)
    assert loss == pytest.approx(math.log(512) + 0.2, abs=0.1)


def test_the_residual_stream_does_not_grow_with_depth() -> None:
    tokens = torch.randint(0, 512, (2, 64), generator=torch.Generator().manual_seed(1))
    growth = []
    for layers in (2, 8, 32):
        model, stream = initialised(shape(layers=layers)), []
        model.model.norm.register_forward_hook(lambda _, inputs, __, stream=stream: stream.append(inputs[0]))
        with torch.no_grad():
            model(input_ids=tokens)
        growth.append(float(stream[0].std() / model.model.embed_tokens.weight.std().detach()))
    # Unscaled, it would grow fourfold from 2 layers to 32.
    assert max(growth) < 1.3 * min(growth)
