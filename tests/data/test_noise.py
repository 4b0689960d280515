"""Noise control: the share that comes back is met, drawn evenly, the same whatever the number of processes, and never bad."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from danlu.data.curate.job import Curated, Settings, curate
from danlu.data.curate.stage import Rejected
from danlu.data.dedup.plan import Plan, rows_for
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.data.read import Document
from danlu.data.sources import resolve
from danlu.recipe.data_sections import Source

from .conftest import recipe

PLAN = Plan(0.8, 112, rows_for(0.8, 112), 5, "estimate")


@dataclass(frozen=True)
class Words:
    """Turns down what has a word; the first of several that it has."""

    name: str
    words: tuple[str, ...]
    soft: bool

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        found: list[Document | Rejected] = []
        for document in documents:
            word = next((word for word in self.words if word in document.text.split()), None)
            found.append(document if word is None else Rejected(document, word, 1.0, soft=self.soft))
        return found


STAGES = (Words("style", ("dull", "shrill"), True), Words("poison", ("toxic",), False))


def texts(count: int) -> list[str]:
    """A third is dull or shrill, and of all one in ten toxic and one in ten a copy of the text before."""
    rng = random.Random(1)
    made: list[str] = []
    for number in range(count):
        words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(rng.randint(20, 120))]
        kind = rng.random()
        words += ["dull"] if kind < 0.2 else ["shrill"] if kind < 0.33 else []
        words += ["toxic"] if rng.random() < 0.1 else []
        copied = bool(made) and rng.random() < 0.1
        made.append(made[-1] + f" {'dull ' * (rng.random() < 0.5)}x" if copied else " ".join([*words, str(number)]))
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    rows = [json.dumps({"n": number, "text": text}) + "\n" for number, text in enumerate(texts(4000))]
    for start in range(0, len(rows), 500):
        (folder / f"{start:05d}.jsonl").write_text("".join(rows[start : start + 500]))
    return folder


def run(source: Path, out: Path, **settings: Any) -> Curated:
    settings = {"stages": STAGES, "plan": PLAN, "noise_ratio": 0.07} | settings
    return curate(resolve([Source(path=str(source))]), out, Settings(**settings), lambda line: None)


def numbers(done: Curated, part: str) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for path in sorted((done.folder / part).glob("*")) for line in path.read_bytes().splitlines()]
    return {row.get("document", row)["n"]: row for row in rows}


def content(done: Curated) -> dict[str, bytes]:
    return {str(path.relative_to(done.folder)): path.read_bytes() for path in sorted(done.folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def done(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Curated:
    return run(source, tmp_path_factory.mktemp("done") / "out", noise_ratio=0.07)


def test_the_share_is_met_by_candidates_alone(source: Path, done: Curated) -> None:
    written = texts(4000)
    kept, noise, rejected = (numbers(done, part) for part in ("kept", "noise", "rejected"))
    assert sorted([*kept, *noise, *rejected]) == list(range(4000))
    clean, spoilt = (sum(len(written[n]) for n in part) for part in (kept, noise))
    assert abs(spoilt / (clean + spoilt) - 0.07) < 0.001
    facts = done.report["noise"]
    assert (facts["tokens"], facts["clean_tokens"], facts["documents"]) == (spoilt, clean, len(noise))
    assert facts["achieved"] == pytest.approx(spoilt / (clean + spoilt), abs=1e-6)
    assert sum(facts["rules"].values()) == spoilt and set(facts["rules"]) == {"style.dull", "style.shrill"}
    for n in noise:
        assert {"dull", "shrill"} & set(written[n].split()) and "toxic" not in written[n].split()
    for n in kept:
        assert not {"dull", "shrill", "toxic"} & set(written[n].split())
    # A copy of something is never drawn, and nothing that is kept is left out for something that is not.
    for n, why in rejected.items():
        if why["stage"] == "dedup":
            place, line = why["kept"].split(":")
            assert json.loads((done.folder / place).read_text().splitlines()[int(line) - 1])["n"] in kept
            assert not {"dull", "shrill"} & set(written[n].split())
    assert any(why.get("also") == "dedup" for why in rejected.values())
    assert any(why.get("also") == "poison.toxic" and why["soft"] for why in rejected.values())


def test_every_candidate_has_the_same_chance(source: Path, done: Curated, tmp_path: Path) -> None:
    """A larger share takes what a smaller one took, and more; the share drawn is that of each rule."""
    more = run(source, tmp_path / "more", noise_ratio=0.15)
    assert set(numbers(done, "noise")) < set(numbers(more, "noise"))
    none = run(source, tmp_path / "none", noise_ratio=0.0)
    assert not (none.folder / "noise").exists() and none.report["noise"] is None
    candidates = {n: why["rule"] for n, why in numbers(none, "rejected").items() if why["stage"] == "style"}
    rejected = numbers(more, "rejected")
    candidates = {n: rule for n, rule in candidates.items() if "also" not in rejected.get(n, {})}
    drawn = set(numbers(more, "noise"))
    shares = [
        sum(n in drawn for n, rule in candidates.items() if rule == name) / list(candidates.values()).count(name)
        for name in ("dull", "shrill")
    ]
    spread = (shares[0] * (1 - shares[0]) / 300) ** 0.5
    assert abs(shares[0] - shares[1]) < 3 * spread
    assert set(numbers(none, "kept")) == set(numbers(done, "kept"))


def test_the_result_does_not_depend_on_processes(source: Path, done: Curated, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)
    one = run(source, tmp_path / "one", workers=1)
    several = run(source, tmp_path / "three", workers=3, memory=1)
    assert content(one) == content(several)
    assert len(one.report["shards"]) == 8
    assert set(numbers(one, "noise")) == set(numbers(done, "noise"))


def test_too_few_candidates_are_all_taken_and_said(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "out", noise_ratio=0.5)
    facts = done.report["noise"]
    assert facts["documents"] == facts["candidates"] and facts["achieved"] < 0.4


def test_the_account_adds_up(done: Curated) -> None:
    report = done.report
    assert report["records"] == report["kept"] + report["rejected"] + report["empty"] + report["unreadable"] == 4000
    falls = report["waterfall"]
    assert [row["stage"] for row in falls] == ["read", "style", "poison", "dedup", "kept"]
    assert falls[0]["documents"] + sum(row["documents"] for row in falls[1:-1]) == falls[-1]["documents"] == report["kept"]
    assert falls[0]["bytes"] + sum(row["bytes"] for row in falls[1:-1]) == falls[-1]["bytes"]
    for name, total in (("read_distribution", 4000), ("kept_distribution", report["kept"])):
        assert {sum(counts.values()) for counts in report[name].values()} == {total}
    assert sum(row["kept"] for row in report["sources"]) == report["kept"]
    assert set(report["samples"]) == set(report["rules"]) and all(0 < len(some) <= 5 for some in report["samples"].values())


def test_tokens_are_counted_by_the_run_s_own_tokenizer(source: Path, tmp_path: Path) -> None:
    """In `danlu prepare` with a tokenizer that is trained on what is kept: 7 % of what is written to the shards."""
    curated = {"quality": {"gopher": {"least_words": 60, "least_stop_words": None}, "c4": None, "fineweb": None}}
    made = prepare(
        recipe([{"path": str(source)}], curate=curated | {"noise_ratio": 0.07, "workers": 1}, validation_fraction=0.1),
        tmp_path / "data",
        lambda line: None,
    )
    assert isinstance(made, Prepared)
    noise = made.index["noise"]
    assert noise["target"] == 0.07 and abs(noise["achieved"] - 0.07) < 0.002
    assert made.index["curation"]["noise"]["tokens"] == noise["tokens"]
    assert noise["tokens"] + made.index["curation"]["noise"]["clean_tokens"] == made.train.tokens + made.validation.tokens
    written = [
        json.loads(line)["text"] for path in (tmp_path / "curated" / "noise").iterdir() for line in path.read_bytes().splitlines()
    ]
    assert written and all(len(text.split()) < 62 for text in written)
