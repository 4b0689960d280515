"""Named shapes from 5 million to 405 billion parameters: danlu's own small ones, and published models."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, NamedTuple

from danlu.errors import UserError
from danlu.model.shape import ModelShape


class _Size(NamedTuple):
    """One row; kv_heads equal to heads means no grouping."""

    layers: int
    hidden_size: int
    ffn_size: int
    heads: int
    kv_heads: int
    vocab_size: int
    max_sequence_length: int
    tied_embeddings: bool


_LLAMA: dict[str, Any] = {}
_LLAMA3 = {"rope_theta": 500_000.0}
_LLAMA3_SCALING = {"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 8192}
_LLAMA31 = _LLAMA3 | {"rope_scaling": _LLAMA3_SCALING}
_LLAMA32 = _LLAMA3 | {"rope_scaling": _LLAMA3_SCALING | {"factor": 32.0}}
_MISTRAL = {"family": "mistral"}
_QWEN2 = {"family": "qwen2", "rope_theta": 1_000_000.0, "qkv_bias": True}
_QWEN3 = {"family": "qwen3", "rope_theta": 1_000_000.0, "norm_epsilon": 1e-6, "qk_norm": True, "head_size": 128}

# Own shapes: heads of 64, ffn near 8/3 of the hidden size (Shazeer, arXiv:2002.05202) in multiples of 32, and tied embeddings,
# since untied ones would be most of the parameters. llama-42m and llama-110m are llama2.c's stories42M and stories110M, with
# longer positions. Published shapes: the config.json of the base model (Qwen3: of the model that carries the bare name).
# fmt: off
_TABLE: list[tuple[dict[str, Any], dict[str, _Size]]] = [
    #                          layers  hidden     ffn heads  kv    vocab   length  tied
    (_LLAMA, {
        "llama-5m":        _Size(  4,     256,    688,    4,  4,   8_192,   2_048, True),
        "llama-10m":       _Size(  6,     320,    864,    5,  5,   8_192,   2_048, True),
        "llama-25m":       _Size( 12,     384,  1_024,    6,  6,   8_192,   2_048, True),
        "llama-42m":       _Size(  8,     512,  1_376,    8,  8,  32_000,   2_048, True),
        "llama-110m":      _Size( 12,     768,  2_048,   12, 12,  32_000,   2_048, True),
        "llama-350m":      _Size( 24,   1_024,  2_816,   16, 16,  32_000,   2_048, True),
        "llama-730m":      _Size( 24,   1_536,  4_096,   24, 24,  32_000,   2_048, True),
        "tinyllama-1.1b":  _Size( 22,   2_048,  5_632,   32,  4,  32_000,   2_048, False),
        "llama-2-7b":      _Size( 32,   4_096, 11_008,   32, 32,  32_000,   4_096, False),
        "llama-2-13b":     _Size( 40,   5_120, 13_824,   40, 40,  32_000,   4_096, False),
        "llama-2-70b":     _Size( 80,   8_192, 28_672,   64,  8,  32_000,   4_096, False),
    }),
    (_LLAMA3, {
        "llama-3-8b":      _Size( 32,   4_096, 14_336,   32,  8, 128_256,   8_192, False),
        "llama-3-70b":     _Size( 80,   8_192, 28_672,   64,  8, 128_256,   8_192, False),
    }),
    (_LLAMA31, {
        "llama-3.1-8b":    _Size( 32,   4_096, 14_336,   32,  8, 128_256, 131_072, False),
        "llama-3.1-70b":   _Size( 80,   8_192, 28_672,   64,  8, 128_256, 131_072, False),
        "llama-3.1-405b":  _Size(126,  16_384, 53_248,  128,  8, 128_256, 131_072, False),
    }),
    (_LLAMA32, {
        "llama-3.2-1b":    _Size( 16,   2_048,  8_192,   32,  8, 128_256, 131_072, True),
        "llama-3.2-3b":    _Size( 28,   3_072,  8_192,   24,  8, 128_256, 131_072, True),
    }),
    ({"rope_theta": 100_000.0}, {
        "smollm2-135m":    _Size( 30,     576,  1_536,    9,  3,  49_152,   8_192, True),
        "smollm2-360m":    _Size( 32,     960,  2_560,   15,  5,  49_152,   8_192, True),
    }),
    ({"rope_theta": 130_000.0}, {
        "smollm2-1.7b":    _Size( 24,   2_048,  8_192,   32, 32,  49_152,   8_192, True),
    }),
    (_MISTRAL | {"sliding_window": 4_096}, {
        "mistral-7b-v0.1": _Size( 32,   4_096, 14_336,   32,  8,  32_000,  32_768, False),
    }),
    (_MISTRAL | {"rope_theta": 1_000_000.0}, {
        "mistral-7b-v0.3": _Size( 32,   4_096, 14_336,   32,  8,  32_768,  32_768, False),
    }),
    (_QWEN2 | {"norm_epsilon": 1e-6}, {
        "qwen2-0.5b":      _Size( 24,     896,  4_864,   14,  2, 151_936, 131_072, True),
        "qwen2-1.5b":      _Size( 28,   1_536,  8_960,   12,  2, 151_936, 131_072, True),
        "qwen2-7b":        _Size( 28,   3_584, 18_944,   28,  4, 152_064, 131_072, False),
        "qwen2.5-0.5b":    _Size( 24,     896,  4_864,   14,  2, 151_936,  32_768, True),
        "qwen2.5-1.5b":    _Size( 28,   1_536,  8_960,   12,  2, 151_936, 131_072, True),
        "qwen2.5-3b":      _Size( 36,   2_048, 11_008,   16,  2, 151_936,  32_768, True),
        "qwen2.5-7b":      _Size( 28,   3_584, 18_944,   28,  4, 152_064, 131_072, False),
    }),
    (_QWEN2 | {"norm_epsilon": 1e-5}, {
        "qwen2-72b":       _Size( 80,   8_192, 29_568,   64,  8, 152_064, 131_072, False),
        "qwen2.5-14b":     _Size( 48,   5_120, 13_824,   40,  8, 152_064, 131_072, False),
        "qwen2.5-32b":     _Size( 64,   5_120, 27_648,   40,  8, 152_064, 131_072, False),
        "qwen2.5-72b":     _Size( 80,   8_192, 29_568,   64,  8, 152_064, 131_072, False),
    }),
    ({"family": "ernie4_5", "rope_theta": 500_000.0, "head_size": 128}, {
        "ernie-4.5-0.3b":  _Size( 18,   1_024,  3_072,   16,  2, 103_424, 131_072, True),
    }),
    (_QWEN3, {
        "qwen3-0.6b":      _Size( 28,   1_024,  3_072,   16,  8, 151_936,  40_960, True),
        "qwen3-1.7b":      _Size( 28,   2_048,  6_144,   16,  8, 151_936,  40_960, True),
        "qwen3-4b":        _Size( 36,   2_560,  9_728,   32,  8, 151_936,  40_960, True),
        "qwen3-8b":        _Size( 36,   4_096, 12_288,   32,  8, 151_936,  40_960, False),
        "qwen3-14b":       _Size( 40,   5_120, 17_408,   40,  8, 151_936,  40_960, False),
        "qwen3-32b":       _Size( 64,   5_120, 25_600,   64,  8, 151_936,  40_960, False),
    }),
]
# fmt: on


def _shape(common: dict[str, Any], size: _Size) -> ModelShape:
    """A row as a shape; what equals the default stays null, so that overriding `heads` or `hidden_size` carries it along."""
    fields = common | size._asdict()
    if size.kv_heads == size.heads:
        del fields["kv_heads"]
    if fields.get("head_size", 0) * size.heads == size.hidden_size:
        del fields["head_size"]
    return ModelShape(**fields)


PRESETS: dict[str, ModelShape] = {name: _shape(common, size) for common, sizes in _TABLE for name, size in sizes.items()}
"""Name -> shape, small to large within a family, with the vocabulary of the published model."""


def preset(name: str) -> ModelShape:
    """The shape of that name, with the vocabulary of the published model; UserError with the nearest names if there is none."""
    if name in PRESETS:
        return PRESETS[name]
    near = get_close_matches(name.lower().rsplit("/", 1)[-1], PRESETS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`danlu model list` prints the names"
    raise UserError(f"model.preset: there is no preset {name!r}; {hint}")
