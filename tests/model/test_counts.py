from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from danlu.model.counts import flops_per_token, matmul_parameters, parameter_count, parameter_parts, state_bytes
from danlu.model.families import tensor_shapes, to_hugging_face
from danlu.model.presets import preset
from danlu.model.shape import ModelShape

BASE: dict[str, Any] = {"vocab_size": 96, "layers": 3, "hidden_size": 48, "ffn_size": 80, "heads": 6, "kv_heads": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied, biases": {"tied_embeddings": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "mistral wide heads": {"family": "mistral", "head_size": 20, "kv_heads": None},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "tied_embeddings": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 16},
}


def shape(name: str) -> ModelShape:
    return ModelShape(**BASE | SHAPES[name])


def their_model(ours: ModelShape) -> torch.nn.Module:
    config = AutoConfig.for_model(**to_hugging_face(ours, bos_token_id=None, eos_token_id=None))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_transformers(name: str) -> None:
    model = their_model(shape(name))
    parts = parameter_parts(shape(name))
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    assert parts.total == parameter_count(shape(name)) == sum(sizes.values())
    assert parts.attention == sum(size for key, size in sizes.items() if "_proj" in key and "self_attn" in key)
    assert parts.mlp == sum(size for key, size in sizes.items() if "mlp" in key)
    assert parts.norms == sum(size for key, size in sizes.items() if "norm" in key)
    assert parts.embedding == sizes["model.embed_tokens.weight"]
    assert parts.head == sizes.get("lm_head.weight", 0)
    assert parts.non_embedding == parts.total - parts.embedding - parts.head


@pytest.mark.parametrize(("name", "length"), [(name, 7) for name in SHAPES] + [("llama", 32)])
def test_flops_are_those_that_torch_counts(name: str, length: int) -> None:
    """torch counts every matrix product of a real step, with the whole attention square: PaLM's convention."""
    model, sequences = their_model(shape(name)), 2
    tokens = torch.zeros(sequences, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens).logits.sum().backward()
    assert counter.get_total_flops() == sequences * length * flops_per_token(shape(name), length)
    model.requires_grad_(False)
    embedded = torch.zeros(sequences, length, shape(name).hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=embedded).logits.sum().backward()
    assert counter.get_total_flops() == sequences * length * flops_per_token(shape(name), length, frozen=True)


def test_flops_of_llama_2_7b_by_hand() -> None:
    """32 layers of 4 * 4096^2 + 3 * 4096 * 11008, a head of 32000 * 4096, and attention over 4096 positions."""
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert matmul_parameters(preset("llama-2-7b")) == matrices
    assert flops_per_token(preset("llama-2-7b"), 4096) == 6 * matrices + 12 * 32 * 32 * 128 * 4096
    assert flops_per_token(preset("llama-2-7b"), 4096, causal=True) == 6 * matrices + 12 * 32 * 32 * 128 * 4097 / 2


@pytest.mark.parametrize("window", [None, 1, 3, 8, 9, 50])
@pytest.mark.parametrize("full_layers", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 8, 33])
def test_attended_positions_are_those_of_the_mask(window: int | None, full_layers: int, length: int) -> None:
    ours = shape("qwen2").model_copy(update={"sliding_window": window, "full_attention_layers": full_layers})
    query, key = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    seen = 0
    for layer in range(ours.layers):
        mask = key <= query
        if window is not None and layer >= full_layers:
            mask &= key > query - window
        seen += int(mask.sum())
    attention = flops_per_token(ours, length, causal=True) - 6 * matmul_parameters(ours)
    assert attention * length == pytest.approx(12 * ours.heads * ours.head_dim * seen, rel=1e-12)


def test_a_window_caps_the_full_square_too() -> None:
    mistral = preset("mistral-7b-v0.1")
    unlimited = mistral.model_copy(update={"sliding_window": None})
    assert flops_per_token(mistral, 4096) == flops_per_token(unlimited, 4096)
    saved = flops_per_token(unlimited, 32768) - flops_per_token(mistral, 32768)
    assert saved == 12 * 32 * 32 * 128 * (32768 - 4096)


@pytest.mark.parametrize("name", SHAPES)
def test_state_bytes_are_those_of_adamw(name: str) -> None:
    model = their_model(shape(name))
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    ours = state_bytes(shape(name))
    assert ours.weights == sum(parameter.nbytes for parameter in model.parameters())
    assert ours.gradients == sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
    assert ours.optimizer == sum(moment.nbytes for moment in moments)
    assert ours.half_copy == 0
    assert ours.total == 16 * parameter_count(shape(name))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", SHAPES)
def test_half_copy_is_the_weights_that_autocast_casts(name: str, precision: Any) -> None:
    """Counts the two-dimensional half-precision tensors that autograd saves from the parameters of one forward."""
    model = their_model(shape(name))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == dtype and tensor.dim() == 2:
            saved[tensor.data_ptr()] = tensor
        return tensor

    # 5 tokens: no activation has the size of a weight.
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", dtype):
        model(input_ids=torch.zeros(1, 5, dtype=torch.long))
    matrices = {size for size in tensor_shapes(shape(name)).values() if len(size) == 2}
    matrices |= {(columns, rows) for rows, columns in matrices}
    copies = sum(tensor.nbytes for tensor in saved.values() if tuple(tensor.shape) in matrices)
    ours = state_bytes(shape(name), precision)
    assert ours.half_copy == copies
    assert ours.total - ours.half_copy == state_bytes(shape(name)).total


def test_parameters_of_every_tensor_are_counted_once() -> None:
    ours = preset("qwen3-0.6b")
    assert parameter_count(ours) == sum(prod(size) for size in tensor_shapes(ours).values())
