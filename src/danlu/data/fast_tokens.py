"""Several times faster encoding, through the `gigatoken` library, of the tokenizers for which it gives the same ids.

Whether it does is decided twice: by the parts of tokenizer.json, all of which must be among those that were compared at length,
and by a sample of hard text on which the ids of both libraries are compared before the first use. Texts with characters that
the libraries' Unicode tables may class differently are left to `tokenizers`, text by text.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from danlu.data.arrays import Array

RENEW = 64 << 20
"""Characters after which the library's encoder is made anew: what it remembers of the words it saw has no bound."""
_LATER = (
    "\u088f\u0c5c\u0cdc\u0cf3\u0ece\u1acf-\u1add\u1ae0-\u1aeb\u1c89\u1c8a\u20c1\u2b96\u2ffc-\u2fff\u31e4\u31e5\u31ef"
    "\ua7cb-\ua7cf\ua7d2\ua7d4\ua7da-\ua7dc\ua7f1\ufbc3-\ufbd2\ufd90\ufd91\ufdc8-\ufdce"
)
"""Characters of the basic plane that came with Unicode 15 to 17."""
_KNOWN_PLANES = [
    (0x1F000, 0x1FB00),
    *((0x20000, 0x2A6E0), (0x2A700, 0x2B739), (0x2B740, 0x2B81E), (0x2B820, 0x2CEA2), (0x2CEB0, 0x2EBE1), (0x2F800, 0x2FA1E)),
]
"""Emoji, and what Han Unicode 14 had beyond the basic plane; all else there is rare, and not worth a list."""
Encode = Callable[[Sequence[str]], list[Array]]


@cache
def _uncertain() -> re.Pattern[str]:
    """Matches a character that the libraries may class differently."""
    codes = [code for code in range(0x80, 0x10000) if unicodedata.category(chr(code)) == "Cn"]
    edges = [0xFFFF, *(edge for first, stop in _KNOWN_PLANES for edge in (first, stop - 1)), 0x110000]
    gaps = "".join(f"{chr(edges[i] + 1)}-{chr(edges[i + 1] - 1)}" for i in range(0, len(edges), 2))
    return re.compile(f"[{_LATER}{''.join(map(chr, codes))}{gaps}]")


class FastEncoder:
    """Encodes what the library is sure about, and gives the rest to `exact`, the reference."""

    def __init__(self, settings: dict[str, Any], exact: Encode) -> None:
        self._data = json.dumps(settings)
        self._exact = exact
        self._left = 0
        self._library: Any = None

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Token ids (uint32) of each text."""
        odd = [number for number, text in enumerate(texts) if not text.isascii() and _uncertain().search(text)]
        if not odd:
            return self._encode(texts)
        slow = dict(zip(odd, self._exact([texts[number] for number in odd]), strict=True))
        quick = iter(self._encode([text for number, text in enumerate(texts) if number not in slow]))
        return [slow[number] if number in slow else next(quick) for number in range(len(texts))]

    def _encode(self, texts: Sequence[str]) -> list[Array]:
        if not texts:
            return []
        self._left -= sum(map(len, texts))
        if self._left < 0:
            from gigatoken import Tokenizer

            self._library = Tokenizer.from_json(self._data)
            self._left = RENEW
        layout = self._library.encode_batch(list(texts)).layout
        ids, offsets = np.asarray(layout.content.data), np.asarray(layout.offsets.data)
        return [ids[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def fast_encoder(data: bytes, exact: Encode) -> FastEncoder | None:
    """An encoder that gives the ids of `exact`, which treats special tokens in a text as plain text; None: there is none.

    data: tokenizer.json.
    """
    settings = json.loads(data)
    if not _comparable(settings):
        return None
    specials = [token["content"] for token in settings["added_tokens"]]
    encoder = FastEncoder(settings | {"added_tokens": [], "post_processor": None}, exact)
    sample = hard_texts(specials)
    try:
        same = all(np.array_equal(a, b) for a, b in zip(encoder.encode(sample), exact(sample), strict=True))
    except Exception:  # not installed, or the library refuses this tokenizer: it raises plain ValueError among others
        return None
    return encoder if same else None


def _comparable(settings: dict[str, Any]) -> bool:
    """Whether all parts are of the kinds that were compared: byte-level BPE behind one split into words."""
    model, normalizer = settings.get("model") or {}, settings.get("normalizer")
    plain = not any(
        model.get(name) for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    )
    return (
        model.get("type") == "BPE"
        and plain
        and (normalizer is None or normalizer.get("type") == "NFC")
        and all(token.get("special") for token in settings.get("added_tokens") or [])
        and _one_split(settings.get("pre_tokenizer") or {})
    )


def _one_split(pre: dict[str, Any]) -> bool:
    if pre.get("type") == "ByteLevel":
        return bool(pre.get("use_regex", True))
    parts = pre.get("pretokenizers") or []
    if pre.get("type") != "Sequence" or [part.get("type") for part in parts] != ["Split", "ByteLevel"]:
        return False
    split, level = parts
    isolated = split.get("behavior") == "Isolated" and not split.get("invert") and "Regex" in (split.get("pattern") or {})
    return isolated and not level.get("use_regex", True) and not level.get("add_prefix_space", True)


def hard_texts(specials: Sequence[str]) -> list[str]:
    """Texts at which tokenizers part: contractions, digits, blanks, marks, emoji, Chinese, odd characters, special tokens."""
    rng = random.Random(0)
    texts = [
        *("", " ", "\n", "\r\n", "\t \t", "  a  b\t\tc \n\n d", "a" * 3000, " " * 3000, "\n" * 500, "ab " * 1000),
        "I'm you're WE'LL IT'S don\u2019t 'S 's' ''''ll' '\u017fx",
        "1 12 123 1234 12345.678e-9 \u0661\u0662\u0663 \u00bd\u00b2 \u2167",
        "你好，世界！。。。\u3000全角\u3000空格，炉火纯青abc中文123",
        "🐉🐲👨‍👩‍👧‍👦🇨🇳👍🏽 ❤️",
        "e\u0301 é n\u0303 \u0915\u094d\u0937",
        "\x00\x01\x7f\x85\u2028\u2029\ufeff\u200b\u200d\u00ad\u00a0x",
        "한국어 텍스트 ไทยภาษา العربية עברית",
        "def f(x):\n\treturn x**2  # c\r\n\r\n",
        "http://a.b/c?d=e&f=g#h -- foo_bar.baz() /* x */ <!-- y -->",
        *specials,
        *(f"a{one}b {one} {one}{one}\n" for one in specials[:64]),
    ]
    kinds = [
        (0x20, 0x7F),
        (0x80, 0x250),
        (0x370, 0x530),
        (0x4E00, 0xA000),
        (0x3000, 0x3100),
        (0x2000, 0x2C00),
        (0x1F300, 0x1FA00),
    ]
    for _ in range(400):
        picked = []
        for _ in range(rng.randint(1, 120)):
            low, high = rng.choice(kinds)
            picked.append(rng.choice(" \n\t\r'’.-_=1A") if rng.random() < 0.3 else chr(rng.randrange(low, high)))
        texts.append("".join(picked))
    return texts
