"""Dimensions from a Hugging Face config.json alone, of any decoder that uses the usual field names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from danlu.encoding import decoded
from danlu.errors import UserError
from danlu.plan.job import Dimensions

NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_size": ("head_dim", "head_size", "kv_channels"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
}
"""How configurations name a dimension, the most usual name first."""
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation")
UNGATED = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "gpt_bigcode", "mpt", "codegen"}
"""Model types with two MLP matrices; their activations alone do not tell in every case."""
LEARNED_POSITIONS = {"gpt2", "gpt_neo", "opt", "gpt_bigcode", "biogpt"}
TIED = {"gpt2", "gpt_neo", "opt", "bloom", "falcon", "gpt_bigcode", "gemma", "gemma2", "gemma3_text", "mpt"}
"""Model types whose embeddings are one tensor unless the configuration says otherwise."""
KNOWN = UNGATED | {
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "ernie4_5", "granite", "olmo", "olmo2"),
    *("cohere", "stablelm", "glm", "glm4", "internlm2", "baichuan", "yi", "exaone", "smollm3", "seed_oss"),
}
"""Model types of which the planner's layer is known to have the matrices."""
MOST = (100_000_000, 10_000)
"""Of anything, and of layers: far beyond what there is, so that a slip of the pen is told and not planned for hours."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class Read(NamedTuple):
    """What a configuration says."""

    dimensions: Dimensions
    longest: int | None
    """Tokens that the model is made for."""
    notes: tuple[str, ...]
    """What was assumed."""


def read(path: Path) -> Read:
    """The config.json in a file or a folder. UserError naming the file and the field that is missing or wrong."""
    file = path / "config.json" if path.is_dir() else path
    try:
        value = json.loads(decoded(file.read_bytes(), file))
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable as JSON ({' '.join(str(error).split())})") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: not a configuration; it holds no object of fields")
    for inner in ("text_config", "llm_config", "language_config"):
        if isinstance(value.get(inner), dict):
            value = {"model_type": value.get("model_type", ""), **value[inner]}
    return parse(value, str(file))


def parse(config: Mapping[str, Any], origin: str) -> Read:
    """The same from the fields themselves."""
    for name in EXPERTS:
        if isinstance(config.get(name), int) and config[name] > 1:
            raise UserError(f"{origin}: {name} is {config[name]}: mixtures of experts are not planned yet, only dense decoders")
    kind, notes = str(config.get("model_type") or "unknown"), []
    hidden, layers, heads = (_needed(config, name, origin) for name in ("hidden", "layers", "heads"))
    vocab = _needed(config, "vocab", origin)
    gated = _gated(config, kind)
    ffn = _number(config, "ffn", origin)
    if ffn is None:
        ffn = 4 * hidden
        notes.append(f"no {NAMES['ffn'][0]}: taken as 4 x {NAMES['hidden'][0]} ({ffn})")
    kv_heads = _number(config, "kv_heads", origin) or (1 if config.get("multi_query") else heads)
    head_size = _number(config, "head_size", origin)
    if head_size is None:
        if hidden % heads:
            raise UserError(f"{origin}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and no head_dim")
        head_size = hidden // heads
    if heads % kv_heads:
        raise UserError(f"{origin}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    if kind not in KNOWN:
        matrices = "three MLP matrices" if gated else "two MLP matrices"
        notes.append(f"model_type {kind} is not known: planned as a decoder with {matrices} a layer, by its field names")
    longest = _number(config, "positions", origin)
    tied = config.get("tie_word_embeddings")
    if not isinstance(tied, bool | None):
        raise UserError(f"{origin}: tie_word_embeddings is {tied!r}; it must be true or false")
    dimensions = Dimensions(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        head_size=head_size,
        tied_embeddings=kind in TIED if tied is None else bool(tied),
        gated_mlp=gated,
        positions=longest or 0 if kind in LEARNED_POSITIONS else 0,
    )
    return Read(dimensions, longest, tuple(notes))


def _gated(config: Mapping[str, Any], kind: str) -> bool:
    """SwiGLU and its kin have a third MLP matrix; plain GELU and ReLU, beside a type that is not known, have not."""
    if kind in KNOWN:
        return kind not in UNGATED
    activation = next((str(config[name]).lower() for name in ACTIVATION if config.get(name)), "silu")
    return any(part in activation for part in ("silu", "swi", "glu"))


def _needed(config: Mapping[str, Any], name: str, origin: str) -> int:
    value = _number(config, name, origin)
    if value is None:
        raise UserError(f"{origin}: no {NAMES[name][0]} (nor {', '.join(NAMES[name][1:])}); the planner needs it")
    return value


def _number(config: Mapping[str, Any], name: str, origin: str) -> int | None:
    for alias in NAMES[name]:
        value = config.get(alias)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{origin}: {alias} is {value!r}; it must be a positive whole number")
        if value > MOST[name == "layers"]:
            raise UserError(f"{origin}: {alias} is {value:,}; no model is known with more than {MOST[name == 'layers']:,}")
        return value
    return None
