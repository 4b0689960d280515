"""A text that a tiny model learns within some hundred steps, made from a seed: sentences of a small grammar with a memory."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = 240


def write(path: Path, documents: int, seed: int = 1) -> Path:
    """A .jsonl of documents. Each follows one walk over a fixed random graph of words, so that the next word can be learned."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnoprstuvw"
    words = sorted({"".join(draw.choice(letters) for _ in range(draw.randint(2, 7))) for _ in range(2 * WORDS)})
    draw.shuffle(words)
    words = words[:WORDS]
    graph = {word: draw.choices(words, k=6) for word in words}
    with path.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            word, text = draw.choice(words), []
            for _ in range(draw.randint(20, 90)):
                text.append(word)
                word = draw.choices(graph[word], weights=(12, 6, 3, 2, 1, 1))[0]
            file.write(json.dumps({"text": " ".join(text)}) + "\n")
    return path
