"""Texts that repeat a test, against a search of word lists in plain Python."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
from pathlib import Path

import pytest

from danlu.data.curate.contamination import index
from danlu.data.curate.contamination.benchmark import benchmark_texts
from danlu.data.curate.contamination.index import Index
from danlu.data.curate.contamination.stage import Decontaminate
from danlu.data.curate.stage import Rejected
from danlu.data.prepare import prepare
from danlu.data.read import Document
from danlu.data.split import place
from danlu.errors import UserError

from .conftest import recipe, write_jsonl

HAN = "\u4e00-\u9fff"


def words(text: str) -> list[str]:
    return re.findall(rf"[{HAN}]|(?:(?![{HAN}])[^\W_])+", text.lower())


def made(rng: random.Random, count: int, han: bool) -> str:
    if han:
        return "".join(chr(rng.randint(0x4E00, 0x4EFF)) + rng.choice(["", "", "，"]) for _ in range(count))
    return " ".join("".join(rng.choices("etaoinsr", k=rng.randint(2, 4))) for _ in range(count))


def test_agrees_with_a_search_of_lists() -> None:
    rng = random.Random(0)
    tests = [made(rng, rng.randint(4, 40), han) for _ in range(40) for han in (False, True)]
    built = Index(((str(number), text) for number, text in enumerate(tests)), 13, None)
    assert built.too_short == sum(len(words(text)) < 8 for text in tests)
    seen = 0
    for _ in range(300):
        han = rng.random() < 0.5
        target = words(rng.choice(tests))
        count, start = rng.randint(5, 16), rng.randint(0, max(0, len(target) - 5))
        planted = ("" if han else " ").join(target[start : start + count])
        text = f"{made(rng, 30, han)}{'。' if han else ' '}{planted.upper()} {made(rng, 30, han)}"
        mine = words(text)
        wanted = False
        for test in map(words, tests):
            size = min(13, len(test))
            runs = {tuple(test[at : at + size]) for at in range(len(test) - size + 1)} if size >= 8 else set()
            wanted |= any(tuple(mine[at : at + size]) in runs for at in range(len(mine) - size + 1))
        match = built.match(text)
        assert (match is not None) == wanted
        if match is not None:
            seen += 1
            shared = words(match.what)
            assert len(shared) >= 8 and " ".join(shared) in " ".join(words(tests[int(match.place)]))
    assert 30 < seen < 250


def test_near_copies_of_a_whole_test_are_found() -> None:
    rng = random.Random(1)
    test = made(rng, 200, False)
    changed = test.split()
    for at in range(6, 200, 12):  # no run of 13 words is left, and about half of the runs of 5
        changed[at] = "zzz"
    assert Index([("t", test)], 13, None).match(" ".join(changed)) is None
    match = Index([("t", test)], 13, 0.35).match(" ".join(changed))
    assert match is not None and match.rule == "near"
    a, b = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (test.split(), changed))
    assert float(match.what) == pytest.approx(len(a & b) / len(a | b), abs=0.001)


def test_what_many_tests_share_is_their_form() -> None:
    rng = random.Random(2)
    head = "answer the following question with one of the letters given below and nothing else"
    tests = [(str(number), f"{head} {made(rng, 20, False)}") for number in range(30)]
    assert Index(tests, 13, None).match(f"please {head} now") is None
    assert Index(tests[:5], 13, None).match(f"please {head} now") is not None


def test_every_text_of_every_kind_of_file_counts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"q": "one", "choices": ["two", {"x": "three"}], "n": 4}\n\n{"q": "五"}\n', encoding="utf-8"
    )
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'[{"q": "six"}, "seven"]'))
    (tmp_path / "c.txt").write_text("eight\n")
    (tmp_path / "d.tsv").write_text('q\ta\nnine, or "so"\t' + "x" * 200_000 + "\n")
    (tmp_path / "e.json").write_text(r'"half \ud800 a pair"')
    found = list(benchmark_texts([str(tmp_path)]))
    assert [text.strip() for _, text in found[:7]] == ["one", "two", "three", "五", "six", "seven", "eight"]
    assert [text for _, text in found[7:]] == ["q", "a", 'nine, or "so"', "x" * 200_000, "half ? a pair"]
    assert found[2][0].endswith("a.jsonl:1") and found[3][0].endswith("a.jsonl:2")


def test_half_a_benchmark_is_an_error(tmp_path: Path) -> None:
    for name, data in (
        ("bad.jsonl", b'{"q": "one"}\n{"q": \n'),
        ("cut.jsonl.gz", gzip.compress(b'{"q": "one"}\n' * 1000)[:-20]),
        ("latin.txt", b"caf\xe9 \xff"),
        ("latin.csv", b"a,caf\xe9 \xff\n"),
        ("broken.jsonl.gz", gzip.compress(random.Random(0).randbytes(5000))[:20] + b"\xff" * 500),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f"against: .*{name}"):
            list(benchmark_texts([str(tmp_path / name)]))
    with pytest.raises(UserError, match=r"decontaminate.against: .*no such file"):
        list(benchmark_texts(["absent.jsonl"]))


def test_training_documents_that_repeat_a_held_out_one(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts = [made(rng, 120, number % 3 == 0) for number in range(80)]
    held = [text for text in texts if place(text).split < 0.2]
    assert 5 < len(held) < 40
    copies: list[str] = []
    while len(copies) < 6:  # such as are not held out themselves
        source = held[len(copies) % len(held)]
        text = f"{made(rng, 20, False)} {source[: len(source) * 2 // 3]} {made(rng, 20, False)}"
        copies += [text] if place(text).split >= 0.2 else []
    path = write_jsonl(tmp_path / "a.jsonl", texts + copies)
    settings = {"sources": [{"path": str(path)}], "validation_fraction": 0.2}
    plain = prepare(recipe(**settings), tmp_path / "plain" / "data", lambda line: None)
    lines: list[str] = []
    clean = prepare(recipe(**settings, curate={"decontaminate": {}}), tmp_path / "clean" / "data", lines.append)
    assert clean.train.documents == plain.train.documents - 6
    assert clean.validation is not None and plain.validation is not None
    assert clean.validation.documents == plain.validation.documents
    listed = [json.loads(line) for line in (tmp_path / "clean" / "data" / "contaminated.jsonl").read_text("utf-8").splitlines()]
    assert len(listed) == 6 and all(len(words(one["words"])) >= 30 for one in listed)
    assert any("6 training documents left out that repeat a held-out one" in line for line in lines)
    assert clean.index["report"]["repeats_held_out"] == 6


def test_of_very_many_runs_some_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    tests = [(str(number), made(rng, 200, False)) for number in range(20)]
    monkeypatch.setattr(index, "MOST", 500)
    assert [match and match.place for match in (Index(tests, 13, None).match(text) for _, text in tests)] == [n for n, _ in tests]


def test_the_stage_names_the_test_and_the_words(tmp_path: Path) -> None:
    question = "Natalia sold clips to forty eight of her friends in April, and then she sold half as many in May."
    chinese = "小明有三个苹果，小红比他多两个，请问他们一共有多少个苹果？"
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"question": q}) + "\n" for q in (question, chinese)))
    stage = pickle.loads(pickle.dumps(Decontaminate((str(tmp_path / "t.jsonl"),), 13, 0.8)))
    documents = [
        Document("A page about clips, and friends in April.", 0, "a"),
        Document("Q: " + question.upper().replace(",", " -") + " A: 72", 0, "b"),
        Document("题目：小明有三个苹果 小红比他多两个 请问他们一共有多少个苹果", 0, "c"),
    ]
    kept, english, han = stage.apply(documents)
    assert kept == documents[0]
    assert isinstance(english, Rejected) and not english.soft
    assert "t.jsonl:1: NATALIA SOLD CLIPS" in str(english.value)
    assert isinstance(han, Rejected) and "t.jsonl:2: 小明有三个苹果" in str(han.value)
