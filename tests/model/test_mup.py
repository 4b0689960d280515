from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.initialisation import initial
from danlu.model.mup import Multipliers, Mup, multipliers
from danlu.model.shape import ModelShape
from danlu.recipe import parse, resume_conflicts

BASE: dict[str, Any] = {"vocab_size": 512, "layers": 2, "hidden_size": 64, "ffn_size": 192, "heads": 4}
LAYER = "model.layers.1."


def shape(width: int = 1, **fields: Any) -> ModelShape:
    """So many times as wide, with as many times more heads."""
    return ModelShape(**BASE | {"hidden_size": 64 * width, "ffn_size": 192 * width, "heads": 4 * width} | fields)


@pytest.mark.parametrize("fields", [{}, {"tied_embeddings": True}, {"family": "qwen3", "qk_norm": True, "tied_embeddings": True}])
def test_nothing_changes_at_the_base_width(fields: dict[str, Any]) -> None:
    for name in tensor_shapes(shape(**fields)):
        assert multipliers(shape(**fields), name, Mup(base_hidden_size=64)) == Multipliers(1.0, 1.0)
        assert multipliers(shape(4, **fields), name, None) == Multipliers(1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "variance", "rate"),
    [
        ("model.embed_tokens.weight", 0, 0),  # input weights: both the same at every width
        (f"{LAYER}self_attn.q_proj.weight", -1, -1),  # hidden weights: variance 1 / fan-in, rate 1 / fan-in
        (f"{LAYER}self_attn.o_proj.weight", -1, -1),
        (f"{LAYER}mlp.up_proj.weight", -1, -1),
        (f"{LAYER}mlp.down_proj.weight", -1, -1),
        ("lm_head.weight", -2, -1),  # output weights: variance 1 / fan-in^2, rate 1 / fan-in
    ],
)
def test_table_3_of_the_paper(name: str, variance: int, rate: int) -> None:
    """Powers of the width under Adam, Tensor Programs V (arXiv:2203.03466), table 3."""
    mup = Mup(base_hidden_size=64)
    narrow, wide = (initial(shape(width), name, mup).standard_deviation for width in (1, 8))
    assert math.log(wide / narrow, 8) == pytest.approx(variance / 2)
    assert math.log(multipliers(shape(8), name, mup).learning_rate, 8) == pytest.approx(rate)


@pytest.mark.parametrize("name", [f"{LAYER}input_layernorm.weight", f"{LAYER}self_attn.v_proj.bias", "model.norm.weight"])
def test_vectors_stay_as_they_are(name: str) -> None:
    assert multipliers(shape(8, qkv_bias=True), name, Mup(base_hidden_size=64)) == Multipliers(1.0, 1.0)


def test_larger_heads_attend_with_1_over_d() -> None:
    """From heads of 16 to heads of 64, queries are half as large as 1 / sqrt(d) would have them."""
    mup = Mup(base_hidden_size=64, base_head_size=16)
    plain = shape(4, heads=4, qkv_bias=True)
    assert multipliers(plain, f"{LAYER}self_attn.q_proj.weight", mup) == Multipliers(0.5, 0.125)
    assert multipliers(plain, f"{LAYER}self_attn.q_proj.bias", mup) == Multipliers(0.5, 0.5)
    assert multipliers(plain, f"{LAYER}self_attn.k_proj.weight", mup) == Multipliers(1.0, 0.25)
    normed = shape(4, heads=4, family="qwen3", qk_norm=True)
    assert multipliers(normed, f"{LAYER}self_attn.q_norm.weight", mup) == Multipliers(0.5, 0.5)
    assert multipliers(normed, f"{LAYER}self_attn.q_proj.weight", mup) == Multipliers(1.0, 0.25)
    assert initial(normed, f"{LAYER}self_attn.q_norm.weight", mup) == (0.5, 0.0)


def test_bad_settings_are_refused() -> None:
    for fields in ({"base_hidden_size": 0}, {"base_hidden_size": 64, "base_head_size": 0}, {}):
        with pytest.raises(ValidationError):
            Mup(**fields)
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}}
    with pytest.raises(UserError, match=r"model\.mup\.base_hidden_size"):
        parse(tree, ["model.mup.base_hidden_size=0"])
    with pytest.raises(UserError, match=r"the keys of model\.mup are base_hidden_size"):
        parse(tree, ["model.mup.base_width=64"])
    with pytest.raises(UserError, match=r"model\.mup"):
        parse(tree, ["model.use_mup=true"])


def test_a_run_does_not_go_on_in_another_parametrisation() -> None:
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}}
    scaled = parse(tree, ["model.mup.base_hidden_size=64"])
    assert [field for field, _, _ in resume_conflicts(parse(tree), scaled)] == ["model.mup"]
