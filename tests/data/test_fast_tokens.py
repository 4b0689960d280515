"""The faster library must give the ids of `tokenizers`, or not be used at all."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Reference

from danlu.data import fast_tokens
from danlu.data.tokenizer import BEGIN, END, PAD, WORTH_CHECKING, Tokenizer, train

from .conftest import lines

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def level(regex: bool, prefix: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level(False)])


def made(pre: Any, normalizer: Any = None, **model: Any) -> dict[str, Any]:
    tokenizer = Reference(models.BPE())
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=[BEGIN, END, PAD], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*lines(300), "- -g _C == ... it's 1234 12345\n\n\n" * 50], trainer)
    settings: dict[str, Any] = json.loads(tokenizer.to_str())
    settings["model"] |= model
    return settings


def loaded(settings: dict[str, Any]) -> Tokenizer:
    return Tokenizer(json.dumps(settings).encode(), "test", BEGIN, END)


def corpus() -> list[str]:
    """Other hard texts than those of the check itself, from all planes of Unicode."""
    rng = random.Random(99)
    texts = [*lines(200), f"x{END}y {BEGIN}", "", "\n" * 30, "字" * 500, "no line end " * 25_000]
    for _ in range(1000):
        codes = [rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)]) for _ in range(40)]
        texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    texts += [
        f"{chr(code)}-g {chr(code)}_C 1{chr(code)}2 a{chr(code)}'s"
        for code in range(0x80, 0x30000, 53)
        if not 0xD800 <= code < 0xE000
    ]
    return texts


FAST = {
    "own": lambda: json.loads(train(lines(300), 600)),
    "GPT-2": lambda: made(level(True)),
    "with a blank before": lambda: made(level(True, prefix=True)),
    "Llama 3": lambda: made(split(LLAMA3), ignore_merges=True),
    "Qwen 2": lambda: made(split(QWEN2), normalizers.NFC()),
}


@pytest.mark.parametrize("kind", FAST)
def test_the_ids_are_the_same(kind: str) -> None:
    tokenizer = loaded(FAST[kind]())
    assert tokenizer.engine == "gigatoken"
    texts = corpus()
    assert sum(map(len, texts)) > WORTH_CHECKING
    for text, fast, slow in zip(texts, tokenizer.encode_batch(texts), loaded(FAST[kind]())._ids(texts), strict=True):
        if len(text) < 100_000:  # longer ones are cut before they are encoded
            assert np.array_equal(fast, slow), ascii(text)


def added(settings: dict[str, Any]) -> dict[str, Any]:
    tokenizer = Reference.from_str(json.dumps(settings))
    tokenizer.add_tokens(["fox", AddedToken("炉火", lstrip=True)])
    changed: dict[str, Any] = json.loads(tokenizer.to_str())
    return changed


SLOW = {
    "lower case": lambda: made(level(True), normalizers.Lowercase()),
    "compatibility forms": lambda: made(level(True), normalizers.NFKC()),
    "a replacement": lambda: made(level(True), normalizers.Replace("a", "b")),
    "digits apart": lambda: made(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(True)])),
    "scripts apart": lambda: made(pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), level(True)])),
    "an unknown pattern": lambda: made(split(r"\w+|\W")),
    "no split": lambda: made(level(False)),
    "metaspace": lambda: made(pre_tokenizers.Metaspace()),
    "dropout": lambda: made(level(True), dropout=0.1),
    "added tokens": lambda: added(made(level(True))),
}


@pytest.mark.parametrize("kind", SLOW)
def test_what_cannot_be_represented_takes_the_exact_path(kind: str) -> None:
    tokenizer = loaded(SLOW[kind]())
    assert tokenizer.engine == "tokenizers"
    if kind != "dropout":
        texts = lines(3000)
        assert sum(map(len, texts)) > WORTH_CHECKING
        for one, other in zip(tokenizer.encode_batch(texts), tokenizer._ids(texts), strict=True):
            assert np.array_equal(one, other)


def test_a_library_that_is_wrong_once_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fast_tokens.FastEncoder._encode

    def wrong(self: Any, texts: Sequence[str]) -> Any:
        ids = right(self, texts)
        return [one[:-1] if "🐉" in text else one for one, text in zip(ids, texts, strict=True)]

    monkeypatch.setattr(fast_tokens.FastEncoder, "_encode", wrong)
    assert loaded(FAST["own"]()).engine == "tokenizers"


def test_without_the_library_all_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gigatoken", None)
    tokenizer = loaded(FAST["own"]())
    assert tokenizer.engine == "tokenizers"
    assert tokenizer.decode(tokenizer.encode_batch(["炉火 " * WORTH_CHECKING])[0].tolist()) == "炉火 " * WORTH_CHECKING


def test_the_encoder_is_renewed_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = lines(3000)
    expected = loaded(FAST["own"]()).encode_batch(texts)
    monkeypatch.setattr(fast_tokens, "RENEW", 1000)
    tokenizer = loaded(FAST["own"]())
    found = [tokenizer._fast.encode(texts[start : start + 100]) for start in range(0, 3000, 100)]  # type: ignore[union-attr]
    assert all(np.array_equal(a, b) for a, b in zip(expected, itertools.chain(*found), strict=True))
