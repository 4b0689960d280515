from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from danlu.data import sample as module
from danlu.data.sample import dense_bytes, training_sample
from danlu.data.sources import resolve
from danlu.data.split import place
from danlu.recipe.data_sections import Source

from .conftest import lines, write_jsonl


def sample(sources: list[dict[str, Any]], sample_bytes: int, validation_fraction: float = 0.0) -> list[str]:
    made = [Source.model_validate(source) for source in sources]
    return training_sample(resolve(made).files, made, sample_bytes, validation_fraction)


def size(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def test_a_small_corpus_is_taken_whole_but_for_the_held_out_documents(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", lines(200))
    sources = [{"path": str(path)}]
    assert sample(sources, 10**6) == lines(200)
    assert sample(sources, 10**6, 0.3) == [text for text in lines(200) if place(text).split >= 0.3]


def test_every_file_lends_in_proportion_to_its_size_and_weight(tmp_path: Path) -> None:
    sources = []
    for name, count, weight in (("a", 400, 1.0), ("b", 400, 3.0), ("c", 1200, 1.0)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [f"{name}{text}" for text in lines(count)])
        sources.append({"path": str(path), "weight": weight})
    texts = sample(sources, 60_000)
    assert abs(size(texts) - 60_000) < 2000
    shares = {name: size([text for text in texts if text[0] == name]) / size(texts) for name in "abc"}
    for name, share in (("a", 1 / 7), ("b", 3 / 7), ("c", 3 / 7)):
        assert abs(shares[name] - share) < 0.02


def test_many_small_files_are_sampled_evenly(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03d}.txt").write_text(f"{number:03d} " + "x" * 196)
    texts = sample([{"path": str(tmp_path)}], 6000)
    taken = [int(text[:3]) for text in texts]
    assert len(taken) == 30
    assert max(after - before for before, after in itertools.pairwise(taken)) <= 11


def test_dense_script_is_thinned_for_the_trainers_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{number} " + "炼丹炉火" * 25 for number in range(1000)] + [f"{number} plain" for number in range(1000)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    monkeypatch.setattr(module, "DENSE_BYTES", 50_000)
    found = sample([{"path": str(path)}], 10**7)
    chinese = [text for text in found if "炉" in text]
    assert 20_000 < sum(map(dense_bytes, chinese)) <= 50_000
    assert abs(len(chinese) / len(found) - 0.5) < 0.12, "both kinds alike, so that the mixture stays"
    assert int(chinese[-1].split()[0]) > 900, "from all over the file"


def test_bytes_that_are_dense() -> None:
    assert dense_bytes("plain text") == 0
    assert dense_bytes("炼丹") == 6
    assert dense_bytes("дым") == 4
