"""The tokenizer in a GGUF file as a tokenizer.json, with its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.errors import UserError

_CONTROL, _USER = 3, 4
"""Kinds of tokens that are never split: special ones, and others."""
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's (Radford et al. 2019)."""
_CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""That of tiktoken's cl100k, by which Llama 3 and Qwen 2 cut; they differ in the digits that stay together."""
_CUTS: dict[str, tuple[bool, str]] = {
    "gpt-2": (False, _WORDS),
    "smollm": (True, _WORDS),
    "llama-bpe": (False, _CASELESS % "{1,3}"),
    "qwen2": (False, _CASELESS % ""),
}
"""By the name in the file: whether digits stand alone before anything else, and the pattern of what is kept together."""


def tokenizer_json(told: Mapping[str, Any], file: Path) -> tuple[bytes, dict[str, Any]]:
    """tokenizer.json, and what belongs into tokenizer_config.json. UserError: it is of a kind that cannot be rebuilt exactly."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    way_out = "give the publisher's own with --tokenizer FOLDER"
    kind, cut = told.get("ggml.model"), str(told.get("ggml.pre"))
    if kind != "gpt2" or cut not in _CUTS:
        raise UserError(f"{file}: tokenizer {kind}/{cut} is none that danlu rebuilds ({', '.join(_CUTS)}); {way_out}")
    tokens, merges = told.get("ggml.tokens"), told.get("ggml.merges")
    if not tokens or merges is None:
        raise UserError(f"{file}: the file has no whole tokenizer; {way_out}")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    kinds = told.get("ggml.token_type") or [1] * len(tokens)
    try:
        made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    except Exception as error:  # the library raises plain exceptions
        raise UserError(f"{file}: its tokenizer is damaged ({error}); {way_out}") from None
    made.pre_tokenizer = _cutter(cut, bool(told.get("ggml.add_space_prefix", False)))
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    for wanted in (_CONTROL, _USER):
        made.add_tokens(
            [
                AddedToken(token, special=wanted == _CONTROL, normalized=False)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == wanted
            ]
        )
    return made.to_str(pretty=True).encode("utf-8"), _settings(told, tokens)


_PROBES = (
    "It's 2024, isn't IT'LL?\n\n  1234567 ...\r\n\t x=y;  end ",
    "炉火纯青 é½² don'T\n\n\n  \u00a0 a1b22c333 !!\n?",
    "  \n \n",
)
"""Texts in which every two of the known ways to cut differ."""


def cut_of(data: bytes, origin: Path) -> str:
    """What GGUF calls the way in which a tokenizer.json cuts texts, found by cutting some. UserError: it has no word for it."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_buffer(data)
    if own.pre_tokenizer is not None and json.loads(data)["model"].get("type") == "BPE":
        for name in _CUTS:
            if all(_pieces(own.pre_tokenizer, text) == _pieces(_cutter(name), text) for text in _PROBES):
                return name
    raise UserError(f"{origin}: its tokenizer is none that danlu writes to GGUF (byte-level BPE cut as {', '.join(_CUTS)})")


def _pieces(cutter: Any, text: str) -> list[str]:
    return [piece for piece, _ in cutter.pre_tokenize_str(text)]


def _cutter(name: str, prefix: bool = False) -> Any:
    from tokenizers import Regex, pre_tokenizers

    digits, pattern = _CUTS[name]
    return pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Digits(individual_digits=True)] if digits else []),
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )


def _settings(told: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, name in names.items():
        number = told.get(f"ggml.{key}_token_id")
        if number is not None and 0 <= number < len(tokens):
            found[name] = tokens[number]
    found["add_bos_token"] = bool(told.get("ggml.add_bos_token", False))
    if template := told.get("chat_template"):
        found["chat_template"] = template
    return found
