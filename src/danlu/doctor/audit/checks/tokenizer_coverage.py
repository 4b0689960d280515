"""The tokenizer does not know this text: unknown tokens lose it, and single bytes spell it out."""

from __future__ import annotations

import numpy as np

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

UNKNOWN = 1e-3
BYTES = 0.3
LEAST = 1000
LARGER = Text("give the tokenizer more tokens: data.tokenizer.train.vocab_size", "增大词表：data.tokenizer.train.vocab_size")
OTHER = Text(
    "train a tokenizer on this text, or load the one that belongs to its language",
    "在该文本上训练分词器，或加载对应语言的分词器",
)


def check(material: Material) -> Finding | None:
    tokenizer = material.tokenizer
    train = material.train
    documents = tokenizer.encode_batch(train.texts) if train.documents is None else train.documents
    counts = np.bincount(np.concatenate(documents or [np.empty(0, np.int64)]), minlength=tokenizer.vocab_size)
    total = int(counts.sum())
    if total < LEAST:
        raise NotEnoughData(f"{total} tokens, {LEAST} are needed")
    unknown = counts[tokenizer.unknown_id] / total if tokenizer.unknown_id is not None else 0.0
    spelled = counts[tokenizer.byte_ids].sum() / total
    if unknown < UNKNOWN and spelled < BYTES:
        return None
    why = []
    if unknown >= UNKNOWN:
        why.append(
            Text(
                f"{unknown:.1%} of the training tokens are the unknown token: what they stood for is lost",
                f"{unknown:.1%} 的训练 token 是未知 token：原文已丢失",
            )
        )
    if spelled >= BYTES:
        why.append(
            Text(
                f"{spelled:.0%} of the training tokens are single bytes of characters that the tokenizer does not know",
                f"{spelled:.0%} 的训练 token 是分词器不认识的字符的单个字节",
            )
        )
    return Finding(
        "tokenizer_coverage",
        Severity.WARNING,
        0.9,
        Text("the tokenizer does not fit this text", "分词器与文本不匹配"),
        tuple(why),
        LARGER if material.recipe.data.tokenizer.path is None else OTHER,
    )


AUDIT = Audit(
    "tokenizer_coverage",
    Text("a tokenizer that does not know the text: unknown tokens, single bytes", "分词器不认识文本：未知 token、单字节回退"),
    f"the tokenizer; {LEAST} tokens",
    f"{UNKNOWN:.1%} unknown tokens, or {BYTES:.0%} single bytes beyond ASCII",
    "an unknown token loses text, which byte-level tokenizers never do; a tokenizer of the text's own language spells out rare "
    "characters alone",
    Severity.WARNING,
    check,
    at_start=True,
)
