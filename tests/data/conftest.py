"""What the tests of the data room share: small corpora, recipes over them, and prepared folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.recipe.data_sections import DataSection
from danlu.recipe.sections import ModelSection, Recipe

settings.register_profile("no deadline", deadline=None)  # the machine may be busy
settings.load_profile("no deadline")

_TEXT = "炉火 纯青 the quick brown fox def return self import 🐉 données été 模型 训练 of and to a in that it is was"
WORDS = _TEXT.split()


def lines(count: int, words: int = 40) -> list[str]:
    """Different texts, English and Chinese mixed, the same in every run."""
    return [f"{i}: " + " ".join(WORDS[(i * 7 + j * j * (1 + i % 5)) % len(WORDS)] for j in range(words)) for i in range(count)]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


def recipe(
    sources: list[dict[str, Any]], vocab_size: int | None = 400, model: dict[str, Any] | None = None, **data: Any
) -> Recipe:
    """A recipe over `sources`; short sequences, since the corpora are small."""
    if vocab_size is not None:
        data.setdefault("tokenizer", {"train": {"vocab_size": vocab_size}})
    data = {"sequence_length": 32, "validation_fraction": 0.1} | data
    return Recipe(
        name="test",
        model=ModelSection.model_validate(model or {"preset": "llama-5m"}),
        data=DataSection.model_validate({"sources": sources} | data),
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSON lines file of 300 documents."""
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", lines(300))


@pytest.fixture(scope="session")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The corpus, prepared into several shards. Not to be changed; copy it."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return prepare(recipe([{"path": str(corpus)}], shard_tokens=4000), folder, lambda line: None)
