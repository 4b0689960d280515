"""What GGUF calls the tensors and the settings of a decoder (gguf-py's constants.py, "tensor name map")."""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.model.shape import ModelShape

_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INSIDE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies, by which GGUF keeps Llama 3's scaling."""


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    module, kind = name.rsplit(".", 1)
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    _, _, layer, inside = module.split(".", 3)
    return f"blk.{layer}.{_INSIDE[inside]}.{kind}"


def architecture(shape: ModelShape) -> str:
    """What GGUF calls the family; Mistral goes as Llama there."""
    return "llama" if shape.family == "mistral" else shape.family


def rotary_heads(name: str, shape: ModelShape) -> int | None:
    """Heads of a tensor whose rows GGUF keeps pair by pair; None: it keeps them as they are.

    Llama's rotation pairs neighbouring rows of a head there, and row i with row i + head_dim / 2 in the Hugging Face layout.
    ERNIE pairs neighbours in both.
    """
    if architecture(shape) != "llama":
        return None
    return {"q_proj": shape.heads, "k_proj": shape.key_value_heads}.get(name.rsplit(".", 2)[-2])


def halves_to_pairs(rows: Array, heads: int) -> Array:
    """Hugging Face's order of a projection's rows to GGUF's; (heads * head_dim, ...)."""
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2)).reshape(rows.shape)


def pairs_to_halves(rows: Array, heads: int) -> Array:
    """The reverse of ``halves_to_pairs``."""
    return np.ascontiguousarray(rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2)).reshape(rows.shape)
